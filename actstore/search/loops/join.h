/* The inner loops of a search for the neighbours of all rows: every row is compared with those after it, once, and a
 * pair counts for both of its rows. Included by loops.h.
 *
 * Rows are numbered in an order that puts those beside each other that are near (self_join.py). Codes lie in stages:
 * first a product with the few of the first stage, which most tiles of rows do not survive, and so on. Pairs that
 * survive all stages are bounded once more by codes of their own, then multiplied, then scored as ranking.py scores. */

#define MOST_STAGES 8
#define PAIRS_HELD 1024 /* pairs whose closer look is made together, while their rows' codes are in the cache */

typedef struct { /* codes of some coordinates: self_join.py, Stage */
    const uint8_t *codes;  /* (rows, width) */
    const int8_t *lanes;   /* the block's: (panels, width / 4, PANEL, 4), or of the last stage (count, width) */
    const int32_t *excess; /* of the lanes: what the rows' offset adds to a product */
    const float *rests;    /* of rows: the length of what no stage so far codes */
    const float *errors;   /* and of what the codes so far lose */
    int64_t width;
    double unit; /* what a product of two codes of one stands for */
} Stage;

typedef struct { /* self_join.py, Join */
    const Stage *stages; /* count of them, of which the last is for pairs that survive the others; it may have width 0 */
    int64_t count;
    const float *leading;         /* of rows: the first coordinate */
    const float *norms;           /* and the length of all that is coded, not too small */
    const uint8_t *const *values; /* where the rows lie, float16 or float32 */
    int64_t is_half, dim;
    const double *lengths; /* of the rows, as ranking.py computes them */
    const int64_t *numbers; /* of the rows, by which equal scores are ordered */
    int64_t k;
    float *best;           /* (rows, k) scores, descending */
    int64_t *neighbours;   /* (rows, k) numbers, -1 where there is none yet */
    float *reaches;        /* of rows: what a score must reach. Threads share them: each only writes what holds */
    uint8_t *locks;        /* of rows */
    double slack;          /* of bounds, for rounding */
    double margin;         /* how far a product in float32 is from the score */
    int64_t first, lanes;  /* the rows that are compared with others, a block */
} Join;

typedef struct {
    const Join *join;
    int64_t count, examined, scored;
    int64_t rows[PAIRS_HELD + PANEL * TILE], others[PAIRS_HELD + PANEL * TILE];
    float estimates[PAIRS_HELD + PANEL * TILE];
    double *room; /* (dim + 16,) */
} Held;

#define BELOW_SCORE 1e-6f /* more than the rounding of a score */

/* Keeps the k best of a row, equal scores by number; one that is there already stays. */
static void keep_best(const Join *join, int64_t row, float score, int64_t number)
{
    int64_t k = join->k, place = k;
    float *scores = join->best + row * k;
    int64_t *numbers = join->neighbours + row * k;
    while (__atomic_test_and_set(join->locks + row, __ATOMIC_ACQUIRE))
        ;
    while (place && (score > scores[place - 1] || (score == scores[place - 1] && number < numbers[place - 1])))
        place--;
    if (place < k && !(place && numbers[place - 1] == number)) {
        int64_t moved = k - 1 - place;
        memmove(scores + place + 1, scores + place, moved * sizeof *scores);
        memmove(numbers + place + 1, numbers + place, moved * sizeof *numbers);
        scores[place] = score;
        numbers[place] = number;
        if (numbers[k - 1] >= 0)
            join->reaches[row] = scores[k - 1] - BELOW_SCORE;
    }
    __atomic_clear(join->locks + row, __ATOMIC_RELEASE);
}

/* The product of two rows in float32. */
TARGET static float multiply_both(const uint8_t *one, const uint8_t *other, int64_t is_half, int64_t dim)
{
    int64_t place = 0, size = is_half ? 2 : 4;
    Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
    for (; place + 4 * LANES <= dim; place += 4 * LANES)
#pragma GCC unroll 4
        for (int turn = 0; turn < 4; turn++) {
            int64_t from = (place + turn * LANES) * size;
            Floats left = is_half ? load_halves(one + from) : load_floats((const float *)(one + from));
            Floats right = is_half ? load_halves(other + from) : load_floats((const float *)(other + from));
            sums[turn] = add_product(sums[turn], left, right);
        }
    for (; place < dim; place += LANES)
        sums[0] = add_product(sums[0], load_values(one, is_half, place, dim), load_values(other, is_half, place, dim));
    return sum_floats(add_floats(add_floats(sums[0], sums[1]), add_floats(sums[2], sums[3])));
}

/* The product of two rows as ranking.py sums it. room: (dim + 16,). */
TARGET static double fold_both(const uint8_t *one, const uint8_t *other, int64_t is_half, int64_t dim, double *room)
{
    for (int64_t place = 0; place < dim; place += LANES) {
        float left[LANES], right[LANES];
        double products[LANES];
        store_floats(left, load_values(one, is_half, place, dim));
        store_floats(right, load_values(other, is_half, place, dim));
#pragma GCC unroll 16
        for (int lane = 0; lane < LANES; lane++)
            products[lane] = (double)left[lane] * (double)right[lane];
        memcpy(room + place, products, sizeof products);
    }
    return fold(room, dim);
}

INLINE float reach_of_pair(const Join *join, int64_t row, int64_t other)
{
    float one = join->reaches[row], two = join->reaches[other];
    return one < two ? one : two;
}

TARGET static void score_both(const Join *join, int64_t row, int64_t other, double *room)
{
    double dot = fold_both(join->values[row], join->values[other], join->is_half, join->dim, room);
    float score = (float)(dot / (join->lengths[row] * join->lengths[other]));
    if (score >= join->reaches[row])
        keep_best(join, row, score, join->numbers[other]);
    if (score >= join->reaches[other])
        keep_best(join, other, score, join->numbers[row]);
}

/* Pairs that still reach the limit of one of their rows by all codes, moved to the front; how many. */
TARGET static int64_t bound_held(Held *held)
{
    const Join *join = held->join;
    const Stage *last = join->stages + join->count - 1;
    int64_t kept = 0;
    for (int64_t pair = 0; pair < held->count; pair++) {
        int64_t row = held->rows[pair], other = held->others[pair], lane = other - join->first;
        int32_t product = dot_codes(last->codes + row * last->width, last->lanes + lane * last->width, last->width,
                                    last->excess[lane]);
        float bound = held->estimates[pair] + (float)last->unit * (float)product + (float)join->slack;
        bound += last->rests[row] * last->rests[other];
        bound += last->errors[row] * join->norms[other] + last->errors[other] * join->norms[row];
        held->rows[kept] = row;
        held->others[kept] = other;
        kept += bound >= reach_of_pair(join, row, other);
    }
    return kept;
}

/* Looks closer at the pairs that are held, and lets them go. */
TARGET static void settle_held(Held *held)
{
    const Join *join = held->join;
    int64_t bytes = join->dim * (join->is_half ? 2 : 4);
    held->examined += held->count;
    if (join->stages[join->count - 1].width)
        held->count = bound_held(held);
    for (int64_t pair = 0; pair < held->count; pair++) {
        int64_t row = held->rows[pair], other = held->others[pair];
        if (pair + 2 < held->count) {
            fetch(join->values[held->rows[pair + 2]], bytes);
            fetch(join->values[held->others[pair + 2]], bytes);
        }
        float dot = multiply_both(join->values[row], join->values[other], join->is_half, join->dim);
        double score = dot / (join->lengths[row] * join->lengths[other]);
        if (score + join->margin < reach_of_pair(join, row, other))
            continue;
        held->scored++;
        score_both(join, row, other, held->room);
    }
    held->count = 0;
}

/* A tile's rows by the codes of a stage. */
TARGET INLINE void set_tile(const Stage *stage, int64_t first, int64_t stop, Tile *tile)
{
    tile->count = stop - first < TILE ? stop - first : TILE;
    for (int64_t row = 0; row < TILE; row++) {
        tile->rows[row] = first + (row < tile->count ? row : tile->count - 1);
        tile->codes[row] = stage->codes + tile->rows[row] * stage->width;
        tile->next[row] = tile->codes[row] + (tile->rows[row] + TILE < stop ? TILE * stage->width : 0);
    }
}

typedef Floats Estimates[PANEL / LANES][TILE]; /* of a tile of rows and a panel of lanes */

/* Estimates so far, with the products of another stage. */
TARGET INLINE void add_stage(const Stage *stage, const Integers sums[PANEL / LANES][TILE], Estimates estimates)
{
    Floats unit = repeat_float((float)stage->unit);
#pragma GCC unroll 4
    for (int part = 0; part < PANEL / LANES; part++)
#pragma GCC unroll 8
        for (int row = 0; row < TILE; row++)
            estimates[part][row] = add_product(estimates[part][row], to_floats(sums[part][row]), unit);
}

TARGET INLINE void start_estimates(const Join *join, const Tile *tile, int64_t lane, Estimates estimates)
{
#pragma GCC unroll 4
    for (int part = 0; part < PANEL / LANES; part++) {
        Floats leading = load_floats(join->leading + lane + part * LANES);
#pragma GCC unroll 8
        for (int row = 0; row < TILE; row++)
            estimates[part][row] = add_product(zeros(), repeat_float(join->leading[tile->rows[row]]), leading);
    }
}

typedef struct { /* rows that lie in the cache together */
    int64_t first, stop;
    float lowest[ROWS_IN_CACHE / TILE]; /* what a score with some row of the tile must reach */
    float errors[MOST_STAGES];          /* the largest of each stage, with the largest norm of the block's rows */
    float norm;                         /* the largest */
} Chunk;

TARGET static void set_chunk(const Join *join, int64_t first, int64_t stop, Chunk *chunk)
{
    float norm = 0;
    for (int64_t lane = 0; lane < join->lanes; lane++)
        norm = join->norms[join->first + lane] > norm ? join->norms[join->first + lane] : norm;
    chunk->first = first;
    chunk->stop = stop;
    chunk->norm = 0;
    for (int64_t row = first; row < stop; row++)
        chunk->norm = join->norms[row] > chunk->norm ? join->norms[row] : chunk->norm;
    for (int64_t number = 0; number < join->count - 1; number++) {
        float largest = 0;
        for (int64_t row = first; row < stop; row++)
            largest = join->stages[number].errors[row] > largest ? join->stages[number].errors[row] : largest;
        chunk->errors[number] = largest * norm;
    }
    for (int64_t row = first; row < stop; row++) {
        float *lowest = chunk->lowest + (row - first) / TILE;
        if ((row - first) % TILE == 0 || join->reaches[row] < *lowest)
            *lowest = join->reaches[row];
    }
}

/* What an estimate with the product of rests must reach by a stage, if a pair of the tile and lanes is to survive. */
TARGET INLINE Floats limits_of_lanes(const Join *join, const Chunk *chunk, int64_t number, float lowest, int64_t lane)
{
    Floats reaches = lower(load_floats(join->reaches + lane), repeat_float(lowest));
    Floats allowed = repeat_float(-chunk->errors[number] - (float)join->slack);
    Floats errors = load_floats(join->stages[number].errors + lane);
    return add_product(add_floats(reaches, allowed), errors, repeat_float(-chunk->norm));
}

/* Whether some pair reaches what it must. */
TARGET INLINE int survives(const Join *join, const Chunk *chunk, int64_t number, const Tile *tile, float lowest,
                           int64_t lane, Estimates estimates)
{
    const Stage *stage = join->stages + number;
    uint32_t reached = 0;
#pragma GCC unroll 4
    for (int part = 0; part < PANEL / LANES; part++) {
        Floats rests = load_floats(stage->rests + lane + part * LANES), highest = repeat_float(-INFINITY);
#pragma GCC unroll 8
        for (int row = 0; row < TILE; row++)
            highest = higher(highest, add_product(estimates[part][row], repeat_float(stage->rests[tile->rows[row]]),
                                                  rests));
        reached |= reaching(highest, limits_of_lanes(join, chunk, number, lowest, lane + part * LANES));
    }
    return reached != 0;
}

/* Holds the pairs of a tile and a panel that survive the last stage. */
TARGET static void hold_pairs(const Chunk *chunk, const Tile *tile, int64_t lane, Estimates estimates, Held *held)
{
    const Join *join = held->join;
    int64_t number = join->count - 2;
    const Stage *stage = join->stages + number;
    for (int part = 0; part < PANEL / LANES; part++) {
        int64_t from = lane + part * LANES;
        Floats rests = load_floats(stage->rests + from);
        for (int64_t row = 0; row < tile->count; row++) {
            int64_t place = tile->rows[row];
            Floats bounds = add_product(estimates[part][row], repeat_float(stage->rests[place]), rests);
            uint32_t reached = reaching(bounds, limits_of_lanes(join, chunk, number, join->reaches[place], from));
            float values[LANES];
            if (!reached)
                continue;
            store_floats(values, estimates[part][row]);
            for (; reached; reached &= reached - 1) {
                int64_t other = from + __builtin_ctz(reached);
                if (other >= place)
                    continue; /* the pair of a row with itself, or one that is met the other way round too */
                held->rows[held->count] = place;
                held->others[held->count] = other;
                held->estimates[held->count++] = values[other - from];
            }
        }
    }
    if (held->count > PAIRS_HELD)
        settle_held(held);
}

/* The stages after the first of a tile and a panel. */
TARGET static void look_on(const Chunk *chunk, int64_t first, int64_t panel, const Integers sums[PANEL / LANES][TILE],
                           Held *held)
{
    const Join *join = held->join;
    int64_t lane = join->first + panel * PANEL;
    Estimates estimates;
    Tile tile;
    set_tile(join->stages, first, chunk->stop, &tile);
    start_estimates(join, &tile, lane, estimates);
    add_stage(join->stages, sums, estimates);
    for (int64_t number = 1; number < join->count - 1; number++) {
        const Stage *stage = join->stages + number;
        Integers products[REGISTERS][TILE];
        set_tile(stage, first, chunk->stop, &tile);
        multiply_tile(&tile, stage->width, stage->lanes + panel * PANEL * stage->width, stage->excess + panel * PANEL,
                      products, PANEL / LANES);
        add_stage(stage, products, estimates);
        if (!survives(join, chunk, number, &tile, chunk->lowest[(first - chunk->first) / TILE], lane, estimates))
            return;
    }
    hold_pairs(chunk, &tile, lane, estimates, held);
}

/* Compares the block's rows with rows start to stop, but no row with itself or with one before it. */
TARGET static void join_range(int64_t start, int64_t stop, Held *held)
{
    const Join *join = held->join;
    const Stage *stage = join->stages;
    int64_t panels = (join->lanes + PANEL - 1) / PANEL, together = REGISTERS * LANES / PANEL;
    Chunk chunk;
    Tile tile;
    for (int64_t first = start; first < stop; first += ROWS_IN_CACHE) {
        set_chunk(join, first, first + ROWS_IN_CACHE < stop ? first + ROWS_IN_CACHE : stop, &chunk);
        for (int64_t panel = 0; panel < panels; panel += together) {
            int64_t lane = join->first + panel * PANEL;
            for (int64_t place = first; place < chunk.stop; place += TILE) {
                Integers sums[REGISTERS][TILE];
                float lowest = chunk.lowest[(place - first) / TILE];
                set_tile(stage, place, chunk.stop, &tile);
                multiply_tile(&tile, stage->width, stage->lanes + panel * PANEL * stage->width,
                              stage->excess + panel * PANEL, sums, REGISTERS);
#pragma GCC unroll 2
                for (int64_t inside = 0; inside < together; inside++) {
                    const Integers(*theirs)[TILE] = (const Integers(*)[TILE])sums + inside * (PANEL / LANES);
                    Estimates estimates;
                    start_estimates(join, &tile, lane + inside * PANEL, estimates);
                    add_stage(stage, theirs, estimates);
                    if (panel + inside < panels &&
                        survives(join, &chunk, 0, &tile, lowest, lane + inside * PANEL, estimates))
                        look_on(&chunk, place, panel + inside, theirs, held);
                }
            }
        }
    }
}

/* Compares the rows of a block with all rows after them. Threads share ranges (parts, 2) of rows, of which each takes
 * the next one, and counts (2,): pairs that were examined, and scored. room: (dim + 16,) of a thread's own. */
TARGET int64_t EXPORTED(join_rows)(const Join *join, const int64_t *ranges, int64_t parts, int64_t *next,
                                   int64_t *counts, double *room)
{
    Held held = {.join = join, .room = room};
    int64_t part;
    while ((part = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < parts)
        join_range(ranges[2 * part], ranges[2 * part + 1], &held);
    settle_held(&held);
    __atomic_fetch_add(counts, held.examined, __ATOMIC_RELAXED);
    __atomic_fetch_add(counts + 1, held.scored, __ATOMIC_RELAXED);
    return held.examined;
}

/* Notes the rows of a tile whose estimates are among the highest of their lanes; limits (PANEL,): the lowest of those. */
TARGET INLINE void note_nearest(const Tile *tile, int64_t lane, Estimates estimates, Found *found, float *limits)
{
    for (int part = 0; part < PANEL / LANES; part++)
        for (int64_t row = 0; row < tile->count; row++) {
            uint32_t reached = reaching(estimates[part][row], load_floats(limits + part * LANES));
            float values[LANES];
            if (!reached)
                continue;
            store_floats(values, estimates[part][row]);
            for (; reached; reached &= reached - 1) {
                int bit = __builtin_ctz(reached), inside = part * LANES + bit;
                if (tile->rows[row] != lane + inside)
                    raise_highest(found, tile->rows[row], inside, values[bit]);
                limits[inside] = found->top_estimates[inside * found->size];
            }
        }
}

/* Scores, for every row of a block, those with the highest estimates among some rows. ranges (panels, parts, 2): where
 * those of a panel are. Threads share panels, of which each takes the next one. highest, rows: room for (PANEL, top). */
TARGET int64_t EXPORTED(join_near)(const Join *join, const int64_t *ranges, int64_t parts, int64_t top, int64_t *next,
                                   float *highest, int64_t *rows, double *room)
{
    int64_t panels = (join->lanes + PANEL - 1) / PANEL, panel;
    while ((panel = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < panels) {
        int64_t lane = join->first + panel * PANEL;
        int64_t lanes = join->lanes - panel * PANEL < PANEL ? join->lanes - panel * PANEL : PANEL;
        Found found = {.size = top, .top_estimates = highest, .top_rows = rows};
        float limits[PANEL];
        for (int64_t place = 0; place < PANEL * top; place++)
            highest[place] = -INFINITY;
        for (int64_t inside = 0; inside < PANEL; inside++)
            limits[inside] = inside < lanes ? -INFINITY : INFINITY;
        for (const int64_t *range = ranges + 2 * parts * panel; range < ranges + 2 * parts * (panel + 1); range += 2)
            for (int64_t first = range[0]; first < range[1]; first += TILE) {
                Estimates estimates;
                Tile tile;
                set_tile(join->stages, first, range[1], &tile);
                start_estimates(join, &tile, lane, estimates);
                for (int64_t number = 0; number < join->count - 1; number++) {
                    const Stage *stage = join->stages + number;
                    Integers products[REGISTERS][TILE];
                    set_tile(stage, first, range[1], &tile);
                    multiply_tile(&tile, stage->width, stage->lanes + panel * PANEL * stage->width,
                                  stage->excess + panel * PANEL, products, PANEL / LANES);
                    add_stage(stage, products, estimates);
                }
                note_nearest(&tile, lane, estimates, &found, limits);
            }
        for (int64_t place = 0; place < lanes * top; place++)
            if (highest[place] > -INFINITY)
                score_both(join, lane + place / top, rows[place], room);
    }
    return panels;
}

/* The squares of rows as ranking.py sums them. room: (dim + 16,). */
TARGET int64_t EXPORTED(fold_squares)(const uint8_t *const *values, int64_t is_half, int64_t dim, int64_t count,
                                      double *room, double *squares)
{
    for (int64_t row = 0; row < count; row++)
        squares[row] = fold_both(values[row], values[row], is_half, dim, room);
    return count;
}
