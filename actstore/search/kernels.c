/* The inner loops of a bounded search, for processors that multiply bytes (AVX-512 VNNI): products of 8-bit codes are
 * compared with a threshold while they are in registers, and only what reaches it is written down.
 *
 * Called through ctypes (compiled.py) without Python's lock, so several threads may be in here at once; nothing is
 * kept between calls. What the arrays hold is told in levels.py and query_codes.py. Where this file was not compiled,
 * or kernels_version() is 0, the same is done by torch. */

#include <stdint.h>
#include <string.h>

#define VERSION 1         /* of the functions' arguments, see compiled.py */
#define LEVEL_FACTORS 6   /* levels.py, FACTORS */
#define TAIL_FLOATS 8     /* levels.py, TAIL */
#define LANES 16          /* 32-bit numbers of a register */
#define TILE 8            /* rows multiplied at a time, by two registers of queries each */
#define ROWS_IN_CACHE 128 /* rows that all queries pass over before the next ones are read */
#define AHEAD 6           /* pairs whose rows are fetched before they are needed */

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")))
#define INLINE static inline __attribute__((always_inline))

int kernels_version(void)
{
    __builtin_cpu_init();
    return VERSION * (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni"));
}

VNNI INLINE void fetch(const uint8_t *bytes, int64_t count)
{
    for (int64_t place = 0; place < count; place += 64)
        _mm_prefetch((const char *)bytes + place, _MM_HINT_T0);
}

VNNI INLINE int32_t dot_codes(const uint8_t *row, const int8_t *query, int64_t width)
{
    __m512i even = _mm512_setzero_si512(), odd = even;
    int64_t place = 0;
    for (; place + 128 <= width; place += 128) {
        even = _mm512_dpbusd_epi32(even, _mm512_loadu_si512(row + place), _mm512_loadu_si512(query + place));
        odd = _mm512_dpbusd_epi32(odd, _mm512_loadu_si512(row + place + 64), _mm512_loadu_si512(query + place + 64));
    }
    for (; place < width; place += 64) {
        __mmask64 inside = width - place >= 64 ? ~0ULL : (1ULL << (width - place)) - 1;
        even = _mm512_dpbusd_epi32(even, _mm512_maskz_loadu_epi8(inside, row + place),
                                   _mm512_maskz_loadu_epi8(inside, query + place));
    }
    return _mm512_reduce_add_epi32(_mm512_add_epi32(even, odd));
}

typedef struct {
    int64_t *rows, *queries; /* of pairs whose bound reaches the limit; NULL: only the highest estimates are wanted */
    float *bounds;
    float *limits; /* of queries: on bounds, or on estimates, where only these are wanted: they rise with what is noted */
    int64_t count;
    const float *scales; /* of queries: what bounds are multiplied by */
    int64_t size; /* of each query the rows with the highest estimates are noted beside them, as a heap: the lowest first */
    float *top_estimates;
    int64_t *top_rows;
} Found;

INLINE void note(Found *found, int64_t row, int64_t query, float bound, float estimate)
{
    if (found->rows) {
        found->rows[found->count] = row;
        found->queries[found->count] = query;
        found->bounds[found->count++] = bound * found->scales[query];
    }
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
    if (!found->rows)
        found->limits[query] = estimates[0];
}

/* Pairs whose bound reaches the query's limit, of places start to stop: rows of those numbers, or rows chosen[place].
 *
 * codes (rows, width) and factors (rows, 6): the first level. allowed: a byte per row, or NULL for all. queries:
 * (count, width) codes. excess (count,): what the rows' offset adds to a product. coefficients (6, count), of which the
 * first is not used. found: has room for count pairs of every place. */
VNNI static void bound_few(const uint8_t *codes, const float *factors, int64_t width, const int64_t *chosen,
                              int64_t start, int64_t stop, const uint8_t *allowed, const int8_t *queries,
                              const int32_t *excess, const float *coefficients, int64_t count, Found *found)
{
    for (int64_t place = start; place < stop; place++) {
        int64_t row = chosen ? chosen[place] : place;
        if (chosen && place + AHEAD < stop) {
            fetch(codes + chosen[place + AHEAD] * width, width);
            fetch((const uint8_t *)(factors + chosen[place + AHEAD] * LEVEL_FACTORS), 4 * LEVEL_FACTORS);
        }
        if (allowed && !allowed[row])
            continue;
        const float *factor = factors + row * LEVEL_FACTORS;
        for (int64_t query = 0; query < count; query++) {
            float sum = (float)(dot_codes(codes + row * width, queries + query * width, width) - excess[query]);
            float estimate = sum * factor[0] + factor[2] * coefficients[2 * count + query];
            float bound = estimate + coefficients[count + query];
            for (int64_t term = 3; term < LEVEL_FACTORS; term++)
                bound += factor[term] * coefficients[term * count + query];
            if ((found->rows ? bound : estimate) >= found->limits[query])
                note(found, row, query, bound, estimate);
        }
    }
}

typedef struct {
    const uint8_t *codes[TILE], *next[TILE]; /* next: to be fetched meanwhile */
    int64_t rows[TILE];
    int64_t count; /* of them; what is beyond repeats the last */
} Tile;

/* (TILE, 2 x LANES) products of a tile's codes with two panels of queries, less what the rows' offset adds (2 x LANES):
 * in a panel, four codes of each lane follow each other. */
VNNI INLINE void multiply_tile(const Tile *tile, int64_t width, const int8_t *left, const int8_t *right,
                               const int32_t *excess, __m512i sums[2][TILE])
{
    __m512i kept[2][TILE], none = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int row = 0; row < TILE; row++) {
        kept[0][row] = _mm512_sub_epi32(none, _mm512_loadu_si512(excess));
        kept[1][row] = _mm512_sub_epi32(none, _mm512_loadu_si512(excess + LANES));
    }
    for (int64_t place = 0; place < width; place += 4) {
        __m512i one = _mm512_loadu_si512(left + place * LANES), two = _mm512_loadu_si512(right + place * LANES);
        if (place % 64 == 0)
#pragma GCC unroll 8
            for (int row = 0; row < TILE; row++)
                _mm_prefetch((const char *)tile->next[row] + place, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int row = 0; row < TILE; row++) {
            int32_t four;
            memcpy(&four, tile->codes[row] + place, 4);
            __m512i repeated = _mm512_set1_epi32(four);
            kept[0][row] = _mm512_dpbusd_epi32(kept[0][row], repeated, one);
            kept[1][row] = _mm512_dpbusd_epi32(kept[1][row], repeated, two);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < TILE; row++) {
        sums[0][row] = kept[0][row];
        sums[1][row] = kept[1][row];
    }
}

/* The pairs of a tile and a panel whose bounds reach their limits. coefficients: those of the panel's lanes. */
VNNI INLINE void note_tile(const Tile *tile, const __m512i sums[TILE], const float *factors, const uint8_t *allowed,
                           const float *coefficients, int64_t lanes, int64_t lane, Found *found)
{
    __m512 weights[LEVEL_FACTORS];
#pragma GCC unroll 8
    for (int term = 1; term < LEVEL_FACTORS; term++)
        weights[term] = _mm512_loadu_ps(coefficients + term * lanes);
    for (int64_t row = 0; row < tile->count; row++) {
        const float *factor = factors + tile->rows[row] * LEVEL_FACTORS;
        __m512 estimates = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[row]), _mm512_set1_ps(factor[0]));
        estimates = _mm512_fmadd_ps(_mm512_set1_ps(factor[2]), weights[2], estimates);
        __m512 bounds = _mm512_add_ps(estimates, weights[1]);
#pragma GCC unroll 8
        for (int term = 3; term < LEVEL_FACTORS; term++)
            bounds = _mm512_fmadd_ps(_mm512_set1_ps(factor[term]), weights[term], bounds);
        uint32_t reached = _mm512_cmp_ps_mask(found->rows ? bounds : estimates, _mm512_loadu_ps(found->limits + lane),
                                              _CMP_GE_OQ);
        if (!reached || (allowed && !allowed[tile->rows[row]]))
            continue;
        float values[LANES], guesses[LANES];
        _mm512_storeu_ps(values, bounds);
        _mm512_storeu_ps(guesses, estimates);
        for (; reached; reached &= reached - 1) {
            int which = __builtin_ctz(reached);
            note(found, tile->rows[row], lane + which, values[which], guesses[which]);
        }
    }
}

/* As bound_few for many queries: (panels, width / 4, LANES, 4) codes; excess, coefficients and limits have LANES a
 * panel, limits of what fills the last one up are infinite. panels is even. */
VNNI static void bound_many(const uint8_t *codes, const float *factors, int64_t width, const int64_t *chosen,
                               int64_t start, int64_t stop, const uint8_t *allowed, const int8_t *queries,
                               const int32_t *excess, const float *coefficients, int64_t panels, Found *found)
{
    int64_t lanes = panels * LANES;
    __m512i sums[2][TILE];
    Tile tile;
    for (int64_t first = start; first < stop; first += ROWS_IN_CACHE) {
        int64_t last = first + ROWS_IN_CACHE < stop ? first + ROWS_IN_CACHE : stop;
        for (int64_t panel = 0; panel < panels; panel += 2) {
            for (int64_t place = first; place < last; place += TILE) {
                tile.count = last - place < TILE ? last - place : TILE;
                for (int64_t row = 0; row < TILE; row++) {
                    int64_t inside = place + (row < tile.count ? row : tile.count - 1);
                    int64_t following = inside + TILE < stop ? inside + TILE : stop - 1;
                    tile.rows[row] = chosen ? chosen[inside] : inside;
                    tile.codes[row] = codes + tile.rows[row] * width;
                    tile.next[row] = codes + (chosen ? chosen[following] : following) * width;
                }
                const int8_t *left = queries + panel * width * LANES, *right = left + width * LANES;
                multiply_tile(&tile, width, left, right, excess + panel * LANES, sums);
                for (int64_t side = 0; side < 2; side++) {
                    int64_t lane = (panel + side) * LANES;
                    note_tile(&tile, sums[side], factors, allowed, coefficients + lane, lanes, lane, found);
                }
            }
        }
    }
}

/* ranges (parts, 2): places from and to. */
int64_t bound_rows(const uint8_t *codes, const float *factors, int64_t width, const int64_t *chosen,
                   const int64_t *ranges, int64_t parts, const uint8_t *allowed, const int8_t *queries,
                   const int32_t *excess, const float *coefficients, float *limits, const float *scales,
                   int64_t count, int64_t panels, int64_t *out_rows, int64_t *out_queries, float *out_bounds,
                   int64_t top, float *top_estimates, int64_t *top_rows)
{
    Found found = {out_rows, out_queries, out_bounds, limits, 0, scales, top, top_estimates, top_rows};
    for (int64_t part = 0; part < parts; part++) {
        int64_t start = ranges[2 * part], stop = ranges[2 * part + 1];
        if (panels)
            bound_many(codes, factors, width, chosen, start, stop, allowed, queries, excess, coefficients, panels,
                       &found);
        else
            bound_few(codes, factors, width, chosen, start, stop, allowed, queries, excess, coefficients, count,
                      &found);
    }
    return found.count;
}

/* Pairs that still reach their query's limit once they are bounded by both levels, moved to the front; how many.
 * second (rows, width + 32) holds codes and eight floats, queries (n, width) codes, norms (n, 8) what the floats are
 * multiplied by, the first of them with the product of codes. second may be NULL: bounds stay as they are. */
VNNI int64_t bound_pairs(const uint8_t *second, int64_t width, int64_t *rows, int64_t *owners, float *bounds,
                         int64_t count, const int8_t *queries, const int32_t *excess, const float *norms,
                         const float *limits)
{
    int64_t stride = width + 4 * TAIL_FLOATS, kept = 0, left = 0;
    for (int64_t pair = 0; pair < count; pair++) { /* first without a look at memory far away */
        if (bounds[pair] < limits[owners[pair]])
            continue;
        rows[left] = rows[pair];
        owners[left] = owners[pair];
        bounds[left++] = bounds[pair];
    }
    if (!second)
        return left;
    for (int64_t pair = 0; pair < left; pair++) {
        if (pair + AHEAD < left)
            fetch(second + rows[pair + AHEAD] * stride, stride);
        const uint8_t *row = second + rows[pair] * stride;
        int64_t query = owners[pair];
        float tail[TAIL_FLOATS];
        memcpy(tail, row + width, sizeof tail);
        const float *norm = norms + query * TAIL_FLOATS;
        float bound = tail[0] * norm[0] * (float)(dot_codes(row, queries + query * width, width) - excess[query]);
        for (int64_t term = 1; term < TAIL_FLOATS; term++)
            bound += tail[term] * norm[term];
        bound += bounds[pair];
        if (bound < limits[query])
            continue;
        rows[kept] = rows[pair];
        owners[kept] = query;
        bounds[kept++] = bound;
    }
    return kept;
}

/* Products of whole rows, float16 or float32, with float32 vectors (n, dim), times the row's scale. */
VNNI int64_t score_pairs(const void *values, int64_t is_half, int64_t dim, const int64_t *rows, const int64_t *owners,
                      int64_t count, const float *vectors, const float *scales, float *scores)
{
    int64_t bytes = dim * (is_half ? 2 : 4);
    for (int64_t pair = 0; pair < count; pair++) {
        const uint8_t *row = (const uint8_t *)values + rows[pair] * bytes;
        const uint8_t *next = (const uint8_t *)values + rows[pair + 1 < count ? pair + 1 : pair] * bytes;
        const float *vector = vectors + owners[pair] * dim;
        __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        int64_t place = 0;
        for (; place + 4 * LANES <= dim; place += 4 * LANES) {
            fetch(next + place * (is_half ? 2 : 4), 4 * LANES * (is_half ? 2 : 4)); /* while this one is multiplied */
#pragma GCC unroll 4
            for (int turn = 0; turn < 4; turn++) {
                int64_t from = place + turn * LANES;
                __m512 part = is_half ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(row + 2 * from)))
                                      : _mm512_loadu_ps(row + 4 * from);
                sums[turn] = _mm512_fmadd_ps(part, _mm512_loadu_ps(vector + from), sums[turn]);
            }
        }
        for (; place < dim; place += LANES) {
            __mmask16 inside = dim - place >= LANES ? 0xFFFF : (__mmask16)((1u << (dim - place)) - 1);
            __m512 part = is_half ? _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(inside, row + 2 * place))
                                  : _mm512_maskz_loadu_ps(inside, row + 4 * place);
            sums[0] = _mm512_fmadd_ps(part, _mm512_maskz_loadu_ps(inside, vector + place), sums[0]);
        }
        __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
        scores[pair] = _mm512_reduce_add_ps(sum) * scales[rows[pair]];
    }
    return count;
}

VNNI INLINE double fold(double *values, int64_t width)
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
VNNI int64_t fold_pairs(const void *values, int64_t is_half, int64_t dim, const int64_t *rows, const int64_t *owners,
                        int64_t count, const float *vectors, double *room, double *dots, double *squares)
{
    double *with_query = room, *with_itself = room + dim;
    for (int64_t pair = 0; pair < count; pair++) {
        const uint8_t *row = (const uint8_t *)values + rows[pair] * dim * (is_half ? 2 : 4);
        const float *vector = vectors + owners[pair] * dim;
        for (int64_t place = 0; place < dim; place += 8) {
            __mmask8 inside = dim - place >= 8 ? 0xFF : (__mmask8)((1u << (dim - place)) - 1);
            __m256 part = is_half ? _mm256_cvtph_ps(_mm_maskz_loadu_epi16(inside, row + 2 * place))
                                  : _mm256_maskz_loadu_ps(inside, row + 4 * place);
            __m512d wide = _mm512_cvtps_pd(part), query = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(inside, vector + place));
            _mm512_mask_storeu_pd(with_query + place, inside, _mm512_mul_pd(wide, query));
            _mm512_mask_storeu_pd(with_itself + place, inside, _mm512_mul_pd(wide, wide));
        }
        dots[pair] = fold(with_query, dim);
        squares[pair] = fold(with_itself, dim);
    }
    return count;
}

#else

int kernels_version(void)
{
    return 0;
}

#endif
