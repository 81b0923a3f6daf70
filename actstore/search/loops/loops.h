/* The inner loops of a bounded search: products of 8-bit codes are compared with a threshold while they are in
 * registers, and only what reaches it is written down.
 *
 * Each processor's file (avx2.c, ...) says how its registers load, multiply and compare, and then includes this one,
 * which exports bound_rows_PROCESSOR and so on. Called through ctypes (compiled.py) without Python's lock, so several
 * threads may be in here at once; nothing is kept between calls. What the arrays hold is told in levels.py.
 * A processor's file defines, beside the functions used below:
 *
 * PROCESSOR  the name that the exported functions end in
 * TARGET     the attribute that lets a function use the processor's instructions
 * LANES      32-bit numbers of a register, 4 to 16; Integers and Floats are such registers
 * CODES      of a row and of each query that are multiplied at a time, 4 or 8; Codes and Queries hold them
 * REGISTERS  of queries that are multiplied at a time, with
 * TILE       rows: as many sums as the processor's registers hold */

#define LEVEL_FACTORS 6 /* levels.py, FACTORS */
#define TAIL_FLOATS 8   /* levels.py, TAIL */
#define SHORT_FACTORS 4 /* of 16 bits, in these units: shorter.py */
#define SHORT_UNIT 0x1p-20f
#define SHORT_FIRST 0x1p-15f
#define SHORT_LENGTH 0x1p-14f
#define PANEL 16        /* queries whose codes lie together, four codes of each; levels.py, _LANES */
#define ROWS_IN_CACHE (128 / TILE * TILE) /* rows that all queries pass over before the next ones are read */
#define AHEAD 16        /* rows or pairs whose bytes are fetched before they are needed */
#define LOOKED_AT 512   /* pairs that are looked closer at together: their rows lie far apart */
/* Of what a bound allows beyond the estimate, the part that a near row may well have, by the first level, by both and by
 * short codes: of parts from 0.3 to 0.7 these left least to look at. */
#define EXPECTED 0.6f
#define EXPECTED_AGAIN 0.3f
#define EXPECTED_SHORTLY 0.5f
#define MOST_CODES 1024 /* of a row: compiled.py */
#define MOST_SHORT 2    /* queries that look at short codes first: levels.py, SINGLE_QUERIES */
#define WAITING 32      /* pairs whose codes are fetched before they are needed */

#define JOINED(name, processor) name##_##processor
#define EXPANDED(name, processor) JOINED(name, processor)
#define EXPORTED(name) EXPANDED(name, PROCESSOR)

typedef struct { /* queries, and the rows that they are compared with by the first level: compiled.py, Batch */
    const uint8_t *codes;  /* (rows, width) */
    const float *factors;  /* (rows, 6) */
    int64_t width;
    const int64_t *chosen; /* the rows that are searched; NULL: all. A place is a row's position among them */
    const uint8_t *allowed; /* a byte per row, or NULL for all */
    const int8_t *queries; /* (count, width) codes; with panels (panels, width / 4, PANEL, 4) */
    const int32_t *excess; /* of queries: what the rows' offset adds to a product */
    const float *coefficients; /* (6, count), of which the first is not used */
    const float *scales;   /* of queries: what bounds are multiplied by */
    int64_t count, panels; /* with panels, excess, coefficients and scales have PANEL of them a panel */
    const uint8_t *shorter; /* (rows, width / 2 + 8): codes of four bits and four factors, looked at before the others by
                               a few queries; NULL: there are none. See shorter.py */
} Batch;

typedef struct { /* what pairs are looked at with whose first bound reaches the limit: compiled.py, Closer */
    const uint8_t *second; /* (rows, width + 32): codes and eight floats; NULL: there is no second level */
    int64_t width;
    const int8_t *queries; /* (n, width) codes of the second level */
    const int32_t *excess;
    const float *norms;    /* (n, 8) what the eight floats are multiplied by, the first of them with the product */
    const uint8_t *values; /* the rows, float16 or float32 */
    int64_t is_half, dim;
    const float *vectors;  /* (n, dim) unit queries */
    const float *scales;   /* of the rows: one over their lengths */
    float *thresholds;     /* of queries: what a score must reach. Threads share them: each only writes what holds */
    double margin;         /* how far scores are from the canonical ones */
} Closer;

typedef struct {
    int64_t *rows, *queries; /* of pairs whose bound reaches the limit; NULL: only the highest estimates are wanted */
    float *bounds;
    float *limits; /* of queries: on bounds, or on estimates, where only these are wanted: they rise with what is noted */
    int64_t count;
    const float *scales; /* of queries: what bounds are multiplied by */
    int64_t size; /* of each query the rows with the highest estimates are noted beside them, as a heap: the lowest first */
    float *top_estimates;
    int64_t *top_rows;
    const Closer *closer; /* NULL: bounds of the first level are all that is asked for. Else scores take their place, and
                             the heap holds the highest ones */
    int64_t looked_at;    /* pairs, the first ones, that had their closer look */
    int64_t examined;     /* pairs that reached their limit, and eight for each that was scored */
    int64_t capacity;     /* pairs for which there is room, if there is a closer look */
    int64_t deferred;     /* of them, the last ones, from the end: their closer look can wait until limits have risen */
    const Batch *batch;   /* of those that have been bounded by short codes alone */
    int64_t passed;       /* pairs that the short codes left */
    int64_t waiting, waiting_rows[WAITING], waiting_queries[WAITING]; /* of them, those whose codes are fetched */
} Found;

/* Into the heap of a query. */
static void raise_highest(Found *found, int64_t row, int64_t query, float estimate)
{
    float *estimates = found->top_estimates + query * found->size;
    int64_t *rows = found->top_rows + query * found->size, place = 0, below;
    if (estimate <= estimates[0])
        return;
    while ((below = 2 * place + 1) < found->size) { /* the lowest falls out, others move up */
        if (below + 1 < found->size && estimates[below + 1] < estimates[below])
            below++;
        if (estimate <= estimates[below])
            break;
        estimates[place] = estimates[below];
        rows[place] = rows[below];
        place = below;
    }
    estimates[place] = estimate;
    rows[place] = row;
}

/* What a deferred pair has been bounded by is kept above its query. */
enum { BY_FIRST, BY_BOTH, BY_SHORT, LEVEL_BIT = 32 };

INLINE void defer(Found *found, int64_t row, int64_t query, float bound, int64_t level)
{
    int64_t place = found->capacity - ++found->deferred;
    found->rows[place] = row;
    found->queries[place] = query | level << LEVEL_BIT;
    found->bounds[place] = bound;
}

INLINE int64_t query_of(int64_t deferred)
{
    return deferred & ((1LL << LEVEL_BIT) - 1);
}

/* Whether a row is likely to be so near that its score would raise the limit. */
INLINE int is_likely(float bound, float estimate, float limit, float part)
{
    return estimate + part * (bound - estimate) >= limit;
}

INLINE void note(Found *found, int64_t row, int64_t query, float bound, float estimate)
{
    if (found->closer && !is_likely(bound, estimate, found->limits[query], EXPECTED)) {
        defer(found, row, query, bound * found->scales[query], BY_FIRST);
        return;
    }
    if (found->rows) {
        found->rows[found->count] = row;
        found->queries[found->count] = query;
        found->bounds[found->count++] = bound * found->scales[query];
    }
    if (found->closer)
        return;
    raise_highest(found, row, query, estimate);
    if (!found->rows)
        found->limits[query] = found->top_estimates[query * found->size];
}

INLINE void fetch(const void *bytes, int64_t count)
{
    for (int64_t place = 0; place < count; place += 64)
        __builtin_prefetch((const char *)bytes + place);
}

/* What a pass reads once does not take the place of other things in the caches. */
INLINE void fetch_once(const void *bytes, int64_t count)
{
    for (int64_t place = 0; place < count; place += 64)
        __builtin_prefetch((const char *)bytes + place, 0, 0);
}

INLINE void fetch_factors(const Batch *batch, int64_t row) /* which may lie in two lines of the cache */
{
    const float *factors = batch->factors + row * LEVEL_FACTORS;
    __builtin_prefetch(factors);
    __builtin_prefetch(factors + LEVEL_FACTORS - 1);
}

/* LANES values of a row, float16 or float32; zeros from dim on. */
TARGET INLINE Floats load_values(const uint8_t *row, int64_t is_half, int64_t place, int64_t dim)
{
    int64_t size = is_half ? 2 : 4;
    const uint8_t *from = row + place * size;
    uint8_t some[4 * LANES];
    if (place + LANES > dim) {
        memset(some, 0, sizeof some);
        from = memcpy(some, from, (dim - place) * size);
    }
    return is_half ? load_halves(from) : load_floats((const float *)from);
}

/* A row's product with a float32 vector (dim,); next is fetched meanwhile. */
TARGET INLINE float multiply_row(const uint8_t *row, const uint8_t *next, int64_t is_half, int64_t dim,
                                 const float *vector)
{
    int64_t place = 0, size = is_half ? 2 : 4;
    Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
    for (; place + 4 * LANES <= dim; place += 4 * LANES) {
        fetch(next + place * size, 4 * LANES * size);
#pragma GCC unroll 4
        for (int turn = 0; turn < 4; turn++) {
            int64_t from = place + turn * LANES;
            Floats part = is_half ? load_halves(row + 2 * from) : load_floats((const float *)(row + 4 * from));
            sums[turn] = add_product(sums[turn], part, load_floats(vector + from));
        }
    }
    for (; place < dim; place += LANES) {
        Floats asked = load_values((const uint8_t *)vector, 0, place, dim);
        sums[0] = add_product(sums[0], load_values(row, is_half, place, dim), asked);
    }
    return sum_floats(add_floats(add_floats(sums[0], sums[1]), add_floats(sums[2], sums[3])));
}

/* Pairs that still reach their query's limit by both levels, moved to the front; how many. found: takes those that can
 * wait, unless it is NULL. */
TARGET INLINE int64_t bound_again(const Closer *closer, int64_t *rows, int64_t *owners, float *bounds, int64_t count,
                                  const float *limits, Found *found)
{
    int64_t width = closer->width, stride = width + 4 * TAIL_FLOATS, kept = 0;
    for (int64_t pair = 0; pair < count; pair++) {
        if (pair + AHEAD < count)
            fetch(closer->second + rows[pair + AHEAD] * stride, stride);
        const uint8_t *codes = closer->second + rows[pair] * stride;
        int64_t row = rows[pair], query = owners[pair];
        float tail[TAIL_FLOATS], slack = 0;
        memcpy(tail, codes + width, sizeof tail);
        const float *norm = closer->norms + query * TAIL_FLOATS;
        int32_t product = dot_codes(codes, closer->queries + query * width, width, closer->excess[query]);
        float bound = tail[0] * norm[0] * (float)product;
        for (int64_t term = 1; term < 4; term++)
            slack += tail[term] * norm[term];
        for (int64_t term = 4; term < TAIL_FLOATS; term++)
            bound += tail[term] * norm[term];
        bound += slack + bounds[pair];
        if (bound < limits[query])
            continue;
        if (found && found->capacity - found->deferred > found->count &&
            !is_likely(bound, bound - slack, limits[query], EXPECTED_AGAIN)) {
            defer(found, row, query, bound, BY_BOTH);
            continue;
        }
        rows[kept] = row;
        owners[kept] = query;
        bounds[kept++] = bound;
    }
    return kept;
}

/* kth: the lowest of the k highest scores that a query has so far. */
INLINE void raise_limit(const Closer *closer, float kth, int64_t query, const float *scales, float *limits)
{
    double reached = kth - closer->margin;
    if (reached > closer->thresholds[query]) {
        closer->thresholds[query] = (float)reached;
        limits[query] = (float)(reached / scales[query]);
    }
}

TARGET static void score_pair(Found *found, int64_t row, int64_t query, int64_t next, int64_t *kept)
{
    const Closer *closer = found->closer;
    int64_t bytes = closer->dim * (closer->is_half ? 2 : 4);
    float score = multiply_row(closer->values + row * bytes, closer->values + next * bytes, closer->is_half,
                               closer->dim, closer->vectors + query * closer->dim) * closer->scales[row];
    found->examined += 8;
    if (score + closer->margin < closer->thresholds[query])
        return;
    found->rows[*kept] = row;
    found->queries[*kept] = query;
    found->bounds[(*kept)++] = score;
    raise_highest(found, row, query, score);
    raise_limit(closer, found->top_estimates[query * found->size], query, found->scales, found->limits);
}

/* Of the pairs noted since the last look, those that can be among the highest by their scores, which raise the limits. */
TARGET static void look_closer(Found *found)
{
    const Closer *closer = found->closer;
    int64_t first = found->looked_at, kept = first;
    int64_t *rows = found->rows + first, *owners = found->queries + first, count = found->count - first;
    float *bounds = found->bounds + first;
    found->examined += count;
    if (closer->second)
        count = bound_again(closer, rows, owners, bounds, count, closer->thresholds, found);
    for (int64_t pair = 0; pair < count; pair++)
        if (bounds[pair] >= closer->thresholds[owners[pair]]) /* which rose meanwhile */
            score_pair(found, rows[pair], owners[pair], rows[pair + 1 < count ? pair + 1 : pair], &kept);
    found->count = found->looked_at = kept;
}

/* By the first level, over the query's scale. */
TARGET INLINE float bound_row(const Batch *batch, int64_t row, int64_t query, float *estimate)
{
    int64_t width = batch->width, count = batch->count;
    const float *coefficients = batch->coefficients + query, *factor = batch->factors + row * LEVEL_FACTORS;
    float sum = (float)dot_codes(batch->codes + row * width, batch->queries + query * width, width,
                                 batch->excess[query]);
    *estimate = sum * factor[0] + factor[2] * coefficients[2 * count];
    float bound = *estimate + coefficients[count];
    for (int64_t term = 3; term < LEVEL_FACTORS; term++)
        bound += factor[term] * coefficients[term * count];
    return bound;
}

INLINE void fetch_codes(const Batch *batch, int64_t row)
{
    fetch(batch->codes + row * batch->width, batch->width);
    fetch_factors(batch, row);
}

/* Of the deferred pairs, those that still reach their limit by the first level. */
TARGET static void bound_deferred_first(Found *found)
{
    const float *thresholds = found->closer->thresholds;
    int64_t last = found->capacity - found->deferred;
    found->deferred = 0;
    for (int64_t place = found->capacity - 1, ahead = place; place >= last; place--) {
        for (; ahead >= last && ahead > place - AHEAD; ahead--)
            if (found->queries[ahead] >> LEVEL_BIT == BY_SHORT &&
                found->bounds[ahead] >= thresholds[query_of(found->queries[ahead])])
                fetch_codes(found->batch, found->rows[ahead]);
        int64_t row = found->rows[place], level = found->queries[place] >> LEVEL_BIT;
        int64_t query = query_of(found->queries[place]);
        float bound = found->bounds[place], estimate;
        if (level == BY_SHORT && bound >= thresholds[query]) {
            bound = bound_row(found->batch, row, query, &estimate) * found->scales[query];
            level = BY_FIRST;
            found->passed++;
        }
        if (bound >= thresholds[query])
            defer(found, row, query, bound, level);
    }
}

/* Of the deferred pairs, those that still reach their limit by both levels. */
TARGET static void bound_deferred_again(Found *found)
{
    const Closer *closer = found->closer;
    int64_t rows[LOOKED_AT], owners[LOOKED_AT], last = found->capacity - found->deferred;
    float bounds[LOOKED_AT];
    found->deferred = 0;
    for (int64_t place = found->capacity - 1, waiting = 0; place >= last; place--) {
        int64_t row = found->rows[place], query = query_of(found->queries[place]);
        float bound = found->bounds[place];
        if (found->queries[place] >> LEVEL_BIT == BY_BOTH) {
            defer(found, row, query, bound, BY_BOTH);
        } else {
            rows[waiting] = row;
            owners[waiting] = query;
            bounds[waiting++] = bound;
        }
        if (waiting < LOOKED_AT && (place > last || !waiting))
            continue;
        found->examined += waiting;
        waiting = bound_again(closer, rows, owners, bounds, waiting, closer->thresholds, NULL);
        while (waiting) {
            waiting--;
            defer(found, rows[waiting], owners[waiting], bounds[waiting], BY_BOTH);
        }
    }
}

/* Looks closer at what was deferred. */
TARGET static void look_at_deferred(Found *found)
{
    const Closer *closer = found->closer;
    look_closer(found);
    bound_deferred_first(found);
    if (closer->second)
        bound_deferred_again(found);
    for (int64_t place = found->capacity - found->deferred; place < found->capacity; place++) {
        int64_t query = query_of(found->queries[place]), next = place + 1 < found->capacity ? place + 1 : place;
        if (found->bounds[place] >= closer->thresholds[query]) /* no more is kept than was read */
            score_pair(found, found->rows[place], query, found->rows[next], &found->count);
    }
    found->deferred = 0;
    found->looked_at = found->count;
}

/* Looks closer at what is noted. Whether so many more pairs can be noted then, if need be after those are gone that
 * cannot be among the highest any more. */
TARGET static int has_room(Found *found, int64_t pairs)
{
    const Closer *closer = found->closer;
    int64_t kept = 0;
    look_closer(found);
    if (found->capacity - found->count - found->deferred >= pairs)
        return 1;
    look_at_deferred(found);
    for (int64_t pair = 0; pair < found->count; pair++) {
        if (found->bounds[pair] + closer->margin < closer->thresholds[found->queries[pair]])
            continue;
        found->rows[kept] = found->rows[pair];
        found->queries[kept] = found->queries[pair];
        found->bounds[kept++] = found->bounds[pair];
    }
    found->count = found->looked_at = kept;
    return found->capacity - kept >= pairs;
}

INLINE int is_time_to_look(const Found *found, int64_t pairs)
{
    return found->closer && (found->count - found->looked_at >= LOOKED_AT ||
                             found->capacity - found->count - found->deferred < pairs);
}

/* 0 where there is no room for what a closer look leaves. */
TARGET INLINE int bound_pair(const Batch *batch, int64_t row, int64_t query, Found *found)
{
    float estimate, bound = bound_row(batch, row, query, &estimate);
    if ((found->rows ? bound : estimate) < found->limits[query])
        return 1;
    if (is_time_to_look(found, 1) && !has_room(found, 1))
        return 0;
    note(found, row, query, bound, estimate);
    return 1;
}

/* Pairs whose bound reaches the query's limit, of places start to stop. found: has room for all, or looks closer; 0
 * where there is no room for what that leaves. */
TARGET static int bound_few(const Batch *batch, int64_t start, int64_t stop, Found *found)
{
    const int64_t *chosen = batch->chosen;
    for (int64_t place = start; place < stop; place++) {
        int64_t row = chosen ? chosen[place] : place;
        if (place + AHEAD < stop) { /* rows that follow each other too: else a third slower */
            int64_t coming = chosen ? chosen[place + AHEAD] : place + AHEAD;
            fetch_codes(batch, coming);
        }
        if (batch->allowed && !batch->allowed[row])
            continue;
        for (int64_t query = 0; query < batch->count; query++)
            if (!bound_pair(batch, row, query, found))
                return 0;
    }
    return 1;
}

TARGET static int bound_waiting(const Batch *batch, Found *found)
{
    int fits = 1;
    for (int64_t pair = 0; fits && pair < found->waiting; pair++)
        fits = bound_pair(batch, found->waiting_rows[pair], found->waiting_queries[pair], found);
    found->passed += found->waiting;
    found->waiting = 0;
    return fits;
}

typedef struct {
    const uint8_t *codes[FOUR];
    int64_t rows[FOUR], count; /* of them; what is beyond repeats the first */
    float factors[FOUR][SHORT_FACTORS];
} ShortTile;

typedef struct { /* of a query: what a tile is multiplied with */
    const int8_t *codes;
    int32_t excess;
    float constant, of_first, of_error, of_rest;
} ShortQuery;

static ShortQuery ask_shortly(const Batch *batch, int64_t query)
{
    const float *coefficients = batch->coefficients + query;
    int64_t count = batch->count;
    return (ShortQuery){
        .codes = batch->queries + query * batch->width,
        .excess = batch->excess[query],
        /* a row's norm is one at most, but for its error; and its first coordinate is rounded */
        .constant = coefficients[count] + coefficients[4 * count] + fabsf(coefficients[2 * count]) * SHORT_FIRST,
        .of_first = coefficients[2 * count],
        .of_error = coefficients[3 * count] + coefficients[4 * count],
        .of_rest = coefficients[5 * count],
    };
}

INLINE void read_short_factors(const uint8_t *stored, float factors[SHORT_FACTORS])
{
    uint16_t held[SHORT_FACTORS];
    memcpy(held, stored, sizeof held);
    factors[0] = (float)held[0] * SHORT_UNIT;
    factors[1] = (float)(int16_t)held[1] * SHORT_FIRST;
    factors[2] = (float)held[2] * SHORT_LENGTH;
    factors[3] = (float)held[3] * SHORT_LENGTH;
}

/* Of the rows of a tile, those whose bound by the short codes reaches the limit, as bits. */
TARGET INLINE uint32_t reaching_shortly(const ShortTile *tile, const ShortQuery *query, int64_t half, float limit,
                                        float bounds[FOUR], float estimates[FOUR])
{
    int32_t sums[FOUR];
    uint32_t reached = 0;
    dot_short(tile->codes, query->codes, half, query->excess, sums);
#pragma GCC unroll 4
    for (int row = 0; row < FOUR; row++) {
        const float *factor = tile->factors[row];
        estimates[row] = (float)sums[row] * factor[0] + factor[1] * query->of_first;
        bounds[row] = estimates[row] + query->constant + factor[2] * query->of_error + factor[3] * query->of_rest;
    }
#pragma GCC unroll 4
    for (int row = 0; row < FOUR; row++)
        reached |= (uint32_t)(bounds[row] >= limit) << row;
    return reached;
}

/* As bound_few, with a look at the short codes first: what they leave waits until its codes are there. */
TARGET static int bound_shorter(const Batch *batch, int64_t start, int64_t stop, Found *found)
{
    int64_t half = batch->width / 2, stride = half + 2 * SHORT_FACTORS;
    const int64_t *chosen = batch->chosen;
    ShortTile tile = {.count = 0};
    ShortQuery asked[MOST_SHORT];
    for (int64_t query = 0; query < batch->count; query++)
        asked[query] = ask_shortly(batch, query);
    for (int64_t place = start; place < stop; place++) {
        int64_t row = chosen ? chosen[place] : place;
        if (place + AHEAD < stop)
            fetch_once(batch->shorter + (chosen ? chosen[place + AHEAD] : place + AHEAD) * stride, stride);
        if (!batch->allowed || batch->allowed[row]) {
            tile.codes[tile.count] = batch->shorter + row * stride;
            tile.rows[tile.count++] = row;
        }
        if (!tile.count || (tile.count < FOUR && place + 1 < stop))
            continue;
        for (int64_t rest = tile.count; rest < FOUR; rest++)
            tile.codes[rest] = tile.codes[0];
#pragma GCC unroll 4
        for (int part = 0; part < FOUR; part++)
            read_short_factors(tile.codes[part] + half, tile.factors[part]);
        for (int64_t query = 0; query < batch->count; query++) {
            float bounds[FOUR], estimates[FOUR], limit = found->limits[query];
            uint32_t reached = reaching_shortly(&tile, asked + query, half, limit, bounds, estimates);
            for (reached &= (1u << tile.count) - 1; reached; reached &= reached - 1) {
                int which = __builtin_ctz(reached);
                int64_t noted = tile.rows[which];
                if (found->closer && found->capacity - found->count - found->deferred > WAITING &&
                    !is_likely(bounds[which], estimates[which], limit, EXPECTED_SHORTLY)) {
                    defer(found, noted, query, bounds[which] * found->scales[query], BY_SHORT);
                    continue;
                }
                found->waiting_rows[found->waiting] = noted;
                found->waiting_queries[found->waiting++] = query;
                fetch_codes(batch, noted);
                if (found->waiting == WAITING && !bound_waiting(batch, found))
                    return 0;
            }
        }
        tile.count = 0;
    }
    return bound_waiting(batch, found);
}

typedef struct {
    const uint8_t *codes[TILE], *next[TILE]; /* next: to be fetched meanwhile */
    int64_t rows[TILE];
    int64_t count; /* of them; what is beyond repeats the last */
} Tile;

/* Products of a tile's codes with the queries from a lane on, less what the rows' offset adds. In a panel, four codes
 * of each lane follow each other; the width is a multiple of CODES. */
TARGET INLINE void multiply_tile(const Tile *tile, int64_t width, const int8_t *queries, const int32_t *excess,
                                 Integers sums[REGISTERS][TILE], const int registers)
{
    Integers kept[REGISTERS][TILE];
#pragma GCC unroll 8
    for (int part = 0; part < registers; part++)
#pragma GCC unroll 8
        for (int row = 0; row < TILE; row++)
            kept[part][row] = start_sums(excess + part * LANES);
    for (int64_t place = 0; place < width; place += CODES) {
        Queries asked[REGISTERS];
#pragma GCC unroll 8
        for (int part = 0; part < registers; part++) {
            int panel = part * LANES / PANEL, inside = part * LANES % PANEL;
            asked[part] = load_queries(queries + (panel * width + place) * PANEL + 4 * inside);
        }
        if (place % 64 == 0)
#pragma GCC unroll 8
            for (int row = 0; row < TILE; row++)
                __builtin_prefetch(tile->next[row] + place);
#pragma GCC unroll 8
        for (int row = 0; row < TILE; row++) {
            Codes repeated = repeat_codes(tile->codes[row] + place);
#pragma GCC unroll 8
            for (int part = 0; part < registers; part++)
                kept[part][row] = add_products(kept[part][row], repeated, asked[part]);
        }
    }
#pragma GCC unroll 8
    for (int part = 0; part < registers; part++)
#pragma GCC unroll 8
        for (int row = 0; row < TILE; row++)
            sums[part][row] = kept[part][row];
}

/* The pairs of a tile and a register of queries, from that lane on, whose bounds reach their limits. */
TARGET INLINE void note_tile(const Batch *batch, const Tile *tile, const Integers sums[TILE], int64_t lane,
                             Found *found)
{
    Floats weights[LEVEL_FACTORS];
#pragma GCC unroll 8
    for (int term = 1; term < LEVEL_FACTORS; term++)
        weights[term] = load_floats(batch->coefficients + term * batch->panels * PANEL + lane);
    for (int64_t row = 0; row < tile->count; row++) {
        const float *factor = batch->factors + tile->rows[row] * LEVEL_FACTORS;
        Floats estimates = add_product(zeros(), to_floats(sums[row]), repeat_float(factor[0]));
        estimates = add_product(estimates, repeat_float(factor[2]), weights[2]);
        Floats bounds = add_floats(estimates, weights[1]);
#pragma GCC unroll 8
        for (int term = 3; term < LEVEL_FACTORS; term++)
            bounds = add_product(bounds, repeat_float(factor[term]), weights[term]);
        uint32_t reached = reaching(found->rows ? bounds : estimates, load_floats(found->limits + lane));
        if (!reached || (batch->allowed && !batch->allowed[tile->rows[row]]))
            continue;
        float values[LANES], guesses[LANES];
        store_floats(values, bounds);
        store_floats(guesses, estimates);
        for (; reached; reached &= reached - 1) {
            int which = __builtin_ctz(reached);
            note(found, tile->rows[row], lane + which, values[which], guesses[which]);
        }
    }
}

/* As bound_few for many queries, in panels; limits of what fills the last one up are infinite. */
TARGET static int bound_many(const Batch *batch, int64_t start, int64_t stop, Found *found)
{
    int64_t lanes = batch->panels * PANEL, width = batch->width;
    const int64_t *chosen = batch->chosen;
    Integers sums[REGISTERS][TILE];
    Tile tile;
    for (int64_t first = start; first < stop; first += ROWS_IN_CACHE) {
        int64_t last = first + ROWS_IN_CACHE < stop ? first + ROWS_IN_CACHE : stop;
        if (is_time_to_look(found, ROWS_IN_CACHE * lanes) && !has_room(found, ROWS_IN_CACHE * lanes))
            return 0;
        for (int64_t lane = 0; lane < lanes; lane += REGISTERS * LANES) {
            int64_t registers = lanes - lane < REGISTERS * LANES ? (lanes - lane) / LANES : REGISTERS;
            for (int64_t place = first; place < last; place += TILE) {
                tile.count = last - place < TILE ? last - place : TILE;
                for (int64_t row = 0; row < TILE; row++) {
                    int64_t inside = place + (row < tile.count ? row : tile.count - 1);
                    int64_t following = inside + TILE < stop ? inside + TILE : stop - 1;
                    tile.rows[row] = chosen ? chosen[inside] : inside;
                    tile.codes[row] = batch->codes + tile.rows[row] * width;
                    tile.next[row] = batch->codes + (chosen ? chosen[following] : following) * width;
                    if (chosen)
                        fetch_factors(batch, chosen[following]);
                }
                const int8_t *queries = batch->queries + lane * width;
                if (registers == REGISTERS)
                    multiply_tile(&tile, width, queries, batch->excess + lane, sums, REGISTERS);
                else /* the last panel alone */
                    multiply_tile(&tile, width, queries, batch->excess + lane, sums, PANEL / LANES);
                for (int64_t part = 0; part < registers; part++)
                    note_tile(batch, &tile, sums[part], lane + part * LANES, found);
            }
        }
    }
    return 1;
}

TARGET static int bound_range(const Batch *batch, const int64_t *range, Found *found)
{
    if (batch->panels)
        return bound_many(batch, range[0], range[1], found);
    if (batch->shorter && found->rows && batch->count <= MOST_SHORT)
        return bound_shorter(batch, range[0], range[1], found);
    return bound_few(batch, range[0], range[1], found);
}

/* Short codes of a row's codes, of which a step of the levels is `unit`. What they lose, squared. */
TARGET INLINE float shorten(const uint8_t *codes, int64_t count, float unit, uint8_t *chosen)
{
    float lost = 0, per_unit = 1 / unit;
    for (int64_t place = 0; place < count; place++) {
        float code = (float)(codes[place] - 128), size = fabsf(code) * per_unit;
        int32_t number = 0, level = SHORT_LEVELS[8];
#pragma GCC unroll 7
        for (int step = 0; step < 7; step++) {
            int above = 2 * size > (float)(SHORT_LEVELS[8 + step] + SHORT_LEVELS[9 + step]);
            number += above;
            level += above ? SHORT_LEVELS[9 + step] - SHORT_LEVELS[8 + step] : 0;
        }
        float off = fabsf(code) - unit * (float)level;
        lost += off * off;
        chosen[place] = (uint8_t)(code < 0 ? 7 - number : 8 + number);
    }
    return lost;
}

/* Rounded up. */
INLINE uint16_t short_length(double length)
{
    double parts = ceil(length / SHORT_LENGTH);
    return (uint16_t)(parts < 65535 ? parts : 65535); /* never: of parts of unit vectors */
}

/* Short codes of rows start to stop, from those of the first level: see shorter.py. */
TARGET int64_t EXPORTED(shorten_rows)(const uint8_t *codes, const float *factors, int64_t width, int64_t start,
                                      int64_t stop, uint8_t *shorter)
{
    int64_t half = width / 2, stride = half + 2 * SHORT_FACTORS;
    uint8_t chosen[MOST_CODES];
    for (int64_t row = start; row < stop; row++) {
        const uint8_t *from = codes + row * width;
        const float *factor = factors + row * LEVEL_FACTORS;
        uint8_t *to = shorter + row * stride;
        int32_t squares = 0;
        for (int64_t place = 0; place < width; place++)
            squares += (from[place] - 128) * (from[place] - 128);
        double unit = ceil((double)factor[0] * sqrt((double)squares / (double)width) / LEVEL_OF_ONE / SHORT_UNIT);
        unit = unit < 1 ? 1 : unit < 65535 ? unit : 65535;
        float lost = shorten(from, width, (float)(unit * SHORT_UNIT / factor[0]), chosen);
        for (int64_t place = 0; place < half; place++)
            to[place] = chosen[place] | (uint8_t)(chosen[half + place] << 4);
        /* 1e-4 is more than the sum of up to 1024 squares is rounded by, and than the unit is in float */
        double error = factor[3] + (double)factor[0] * (sqrt((double)lost) * (1 + 1e-4) + 1e-2);
        double first = rint(factor[2] / SHORT_FIRST);
        first = first > 32767 ? 32767 : first < -32767 ? -32767 : first;
        uint16_t made[SHORT_FACTORS] = {(uint16_t)unit, (uint16_t)(int16_t)first, short_length(error),
                                        short_length(factor[5])};
        memcpy(to + half, made, sizeof made);
    }
    return stop - start;
}

/* ranges (parts, 2): places from and to. How many pairs there are. */
TARGET int64_t EXPORTED(bound_rows)(const Batch *batch, const int64_t *ranges, int64_t parts, float *limits,
                                    int64_t *out_rows, int64_t *out_queries, float *out_bounds, int64_t top,
                                    float *top_estimates, int64_t *top_rows)
{
    Found found = {.rows = out_rows, .queries = out_queries, .bounds = out_bounds, .limits = limits,
                   .scales = batch->scales, .size = top, .top_estimates = top_estimates, .top_rows = top_rows};
    for (int64_t part = 0; part < parts; part++)
        bound_range(batch, ranges + 2 * part, &found);
    return found.count;
}

/* Scores the rows with the highest estimates, of each query `top` where there are as many, and raises the thresholds
 * and limits that nearest_rows begins with by the k highest scores (lanes, k). */
TARGET int64_t EXPORTED(raise_thresholds)(const Batch *batch, const Closer *closer, int64_t top,
                                          const float *top_estimates, const int64_t *top_rows, int64_t k,
                                          float *highest, int64_t *highest_rows, float *limits)
{
    Found found = {.size = k, .top_estimates = highest, .top_rows = highest_rows};
    int64_t pairs = batch->count * top, bytes = closer->dim * (closer->is_half ? 2 : 4);
    for (int64_t pair = 0; pair < pairs; pair++) {
        int64_t query = pair / top, row = top_rows[pair], next = top_rows[pair + 1 < pairs ? pair + 1 : pair];
        if (!(top_estimates[pair] > -INFINITY))
            continue;
        float score = multiply_row(closer->values + row * bytes, closer->values + next * bytes, closer->is_half,
                                   closer->dim, closer->vectors + query * closer->dim) * closer->scales[row];
        raise_highest(&found, row, query, score);
    }
    for (int64_t query = 0; query < batch->count; query++)
        raise_limit(closer, highest[query * k], query, batch->scales, limits);
    return pairs;
}

/* With their scores, pairs that hold the k highest of every query; how many. Threads share ranges (parts, 2), of which
 * each takes the next one, thresholds, limits and examined, with how many the short codes left behind it; each has room for `capacity` pairs and heaps (lanes, k) of
 * its own. Where `most` are examined, or there is no room, all threads stop: examined is above `most` then. */
TARGET int64_t EXPORTED(nearest_rows)(const Batch *batch, const Closer *closer, const int64_t *ranges, int64_t parts,
                                      int64_t *next, int64_t *examined, int64_t most, float *limits,
                                      int64_t *out_rows, int64_t *out_queries, float *out_scores, int64_t capacity,
                                      int64_t k, float *highest, int64_t *highest_rows)
{
    Found found = {.rows = out_rows, .queries = out_queries, .bounds = out_scores, .limits = limits,
                   .scales = batch->scales, .size = k, .top_estimates = highest, .top_rows = highest_rows,
                   .closer = closer, .capacity = capacity, .batch = batch};
    for (int64_t counted = 0; __atomic_load_n(examined, __ATOMIC_RELAXED) <= most; counted = found.examined) {
        int64_t part = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        int fits = part >= parts || bound_range(batch, ranges + 2 * part, &found);
        if (part >= parts)
            look_at_deferred(&found);
        __atomic_fetch_add(examined, fits ? found.examined - counted : most + 1, __ATOMIC_RELAXED);
        if (part >= parts)
            break;
    }
    __atomic_fetch_add(examined + 1, found.passed, __ATOMIC_RELAXED);
    return found.count;
}

/* Pairs that still reach their query's limit once they are bounded by both levels, moved to the front; how many.
 * second (rows, width + 32) holds codes and eight floats, queries (n, width) codes, norms (n, 8) what the floats are
 * multiplied by, the first of them with the product of codes. second may be NULL: bounds stay as they are. */
TARGET int64_t EXPORTED(bound_pairs)(const uint8_t *second, int64_t width, int64_t *rows, int64_t *owners,
                                     float *bounds, int64_t count, const int8_t *queries, const int32_t *excess,
                                     const float *norms, const float *limits)
{
    Closer closer = {.second = second, .width = width, .queries = queries, .excess = excess, .norms = norms};
    int64_t left = 0;
    for (int64_t pair = 0; pair < count; pair++) { /* first without a look at memory far away */
        if (bounds[pair] < limits[owners[pair]])
            continue;
        rows[left] = rows[pair];
        owners[left] = owners[pair];
        bounds[left++] = bounds[pair];
    }
    return second ? bound_again(&closer, rows, owners, bounds, left, limits, NULL) : left;
}

/* Products of whole rows, float16 or float32, with float32 vectors (n, dim), times the row's scale. */
TARGET int64_t EXPORTED(score_pairs)(const uint8_t *values, int64_t is_half, int64_t dim, const int64_t *rows,
                                     const int64_t *owners, int64_t count, const float *vectors, const float *scales,
                                     float *scores)
{
    int64_t bytes = dim * (is_half ? 2 : 4);
    for (int64_t pair = 0; pair < count; pair++) {
        const uint8_t *row = values + rows[pair] * bytes;
        const uint8_t *next = values + rows[pair + 1 < count ? pair + 1 : pair] * bytes;
        scores[pair] = multiply_row(row, next, is_half, dim, vectors + owners[pair] * dim) * scales[rows[pair]];
    }
    return count;
}

/* out (rows, count): products of rows that follow each other, float16 or float32, with float32 vectors (count, dim). */
TARGET int64_t EXPORTED(multiply_rows)(const uint8_t *values, int64_t is_half, int64_t dim, int64_t rows,
                                       const float *vectors, int64_t count, float *out)
{
    int64_t bytes = dim * (is_half ? 2 : 4);
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *held = values + row * bytes, *next = row + 1 < rows ? held + bytes : held;
        for (int64_t query = 0; query < count; query++)
            out[row * count + query] = multiply_row(held, next, is_half, dim, vectors + query * dim);
    }
    return rows;
}

TARGET static double fold(double *values, int64_t width)
{
    while (width > 1) {
        int64_t half = width / 2;
        for (int64_t place = 0; place < half; place++)
            values[place] += values[width - half + place];
        width -= half;
    }
    return values[0];
}

/* The sums of ranking.py, in its order: of a row with a query (n, dim), and of the row with itself. Products are exact
 * in double, so only the order of the additions could make a difference. room: 2 * dim. */
TARGET int64_t EXPORTED(fold_pairs)(const uint8_t *values, int64_t is_half, int64_t dim, const int64_t *rows,
                                    const int64_t *owners, int64_t count, const float *vectors, double *room,
                                    double *dots, double *squares)
{
    double *with_query = room, *with_itself = room + dim;
    for (int64_t pair = 0; pair < count; pair++) {
        const uint8_t *row = values + rows[pair] * dim * (is_half ? 2 : 4);
        const float *vector = vectors + owners[pair] * dim;
        for (int64_t place = 0; place < dim; place += LANES) {
            int64_t inside = dim - place < LANES ? dim - place : LANES;
            float part[LANES];
            store_floats(part, load_values(row, is_half, place, dim));
            for (int64_t lane = 0; lane < inside; lane++) {
                with_query[place + lane] = (double)part[lane] * (double)vector[place + lane];
                with_itself[place + lane] = (double)part[lane] * (double)part[lane];
            }
        }
        dots[pair] = fold(with_query, dim);
        squares[pair] = fold(with_itself, dim);
    }
    return count;
}

#include "join.h"
