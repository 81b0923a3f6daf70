/* Calls the compiled loops of one processor (-DLOOPS='"avx2.c"') on arrays from a file, and writes what they return to
 * another: test_search_loops.py makes the one and reads the other. So loops run that Python itself cannot load here. */

#include LOOPS
#include <stdio.h>
#include <stdlib.h>

static uint8_t *next_input;
static FILE *output;

static void *take(int64_t bytes) /* each array begins at a multiple of 64 bytes */
{
    void *taken = next_input;
    next_input += (bytes + 63) / 64 * 64;
    return taken;
}

static void give(const void *bytes, int64_t size)
{
    fwrite(bytes, 1, size, output);
}

static void *room(int64_t bytes)
{
    return calloc(bytes + 1, 1);
}

static void run_bound_rows(void)
{
    int64_t *sizes = take(9 * 8);
    int64_t width = sizes[0], rows = sizes[1], places = sizes[2], parts = sizes[3], count = sizes[4];
    int64_t panels = sizes[5], top = sizes[6], keeps = sizes[7], filtered = sizes[8], lanes = panels ? 16 * panels : count;
    uint8_t *codes = take(rows * width);
    float *factors = take(rows * LEVEL_FACTORS * 4);
    int64_t *chosen = take(places * 8), *ranges = take(parts * 16);
    uint8_t *allowed = take(rows);
    int8_t *queries = take(lanes * width);
    int32_t *excess = take(lanes * 4);
    float *coefficients = take(LEVEL_FACTORS * lanes * 4), *limits = take(lanes * 4), *scales = take(lanes * 4);
    float *estimates = take(lanes * top * 4);
    int64_t *out_rows = room(rows * count * 8), *out_queries = room(rows * count * 8), *likely = room(lanes * top * 8);
    float *bounds = room(rows * count * 4);
    Batch batch = {codes, factors, width, places ? chosen : NULL, filtered ? allowed : NULL, queries, excess,
                   coefficients, scales, count, panels, NULL};
    int64_t found = EXPORTED(bound_rows)(&batch, ranges, parts, limits, keeps ? out_rows : NULL, out_queries, bounds,
                                         top, estimates, likely);
    give(&found, 8);
    give(out_rows, found * 8);
    give(out_queries, found * 8);
    give(bounds, found * 4);
    give(estimates, lanes * top * 4);
    give(likely, lanes * top * 8);
}

static void run_closer_look(void)
{
    int64_t *sizes = take(11 * 8);
    int64_t width = sizes[0], second = sizes[1], rows = sizes[2], count = sizes[3], panels = sizes[4], top = sizes[5];
    int64_t dim = sizes[6], is_half = sizes[7], has_second = sizes[8], lanes = panels ? 16 * panels : count;
    int64_t sampled = sizes[9], capacity = sizes[10], next = 0;
    int64_t ranges[2] = {0, rows}, examined[2] = {0, 0};
    uint8_t *codes = take(rows * width);
    float *factors = take(rows * LEVEL_FACTORS * 4);
    int8_t *queries = take(lanes * width);
    int32_t *excess = take(lanes * 4);
    float *coefficients = take(LEVEL_FACTORS * lanes * 4), *limits = take(lanes * 4), *scales = take(lanes * 4);
    uint8_t *again = take(rows * (second + 4 * TAIL_FLOATS));
    int8_t *queries_again = take(count * second);
    int32_t *excess_again = take(count * 4);
    float *norms = take(count * TAIL_FLOATS * 4);
    uint8_t *values = take(rows * dim * (is_half ? 2 : 4));
    float *vectors = take(count * dim * 4), *row_scales = take(rows * 4), *thresholds = take(count * 4);
    float *highest = take(lanes * top * 4), *estimates = take(lanes * sampled * 4);
    int64_t *likely = take(lanes * sampled * 8);
    int64_t *out_rows = room(capacity * 8), *out_queries = room(capacity * 8), *nearest = room(lanes * top * 8);
    float *scores = room(capacity * 4), *first = room(lanes * top * 4);
    memcpy(first, highest, lanes * top * 4);
    Closer closer = {has_second ? again : NULL, second, queries_again, excess_again, norms, values, is_half, dim,
                     vectors, row_scales, thresholds, 0.25};
    Batch batch = {codes, factors, width, NULL, NULL, queries, excess, coefficients, scales, count, panels, NULL};
    if (sampled)
        EXPORTED(raise_thresholds)(&batch, &closer, sampled, estimates, likely, top, first, nearest, limits);
    int64_t found = EXPORTED(nearest_rows)(&batch, &closer, ranges, 1, &next, examined, INT64_MAX / 2, limits,
                                           out_rows, out_queries, scores, capacity, top, highest, nearest);
    give(&found, 8);
    give(examined, 8);
    give(out_rows, found * 8);
    give(out_queries, found * 8);
    give(scores, found * 4);
    give(thresholds, count * 4);
}

static void run_short_codes(void) /* made, and what they leave of the pairs of all rows and a few queries */
{
    int64_t *sizes = take(4 * 8), width = sizes[0], rows = sizes[1], count = sizes[2], places = sizes[3];
    int64_t stride = width / 2 + 2 * SHORT_FACTORS, ranges[4] = {0, places / 2, places / 2, places}, next = 0;
    int64_t examined[2] = {0, 0}, *out_rows = room(rows * count * 8), *out_queries = room(rows * count * 8);
    uint8_t *codes = take(rows * width), *shorter = room(rows * stride);
    float *factors = take(rows * LEVEL_FACTORS * 4), *scores = room(rows * count * 4);
    int64_t *chosen = take(places * 8), *nearest = room(count * 8);
    int8_t *queries = take(count * width);
    int32_t *excess = take(count * 4);
    float *coefficients = take(LEVEL_FACTORS * count * 4), *limits = take(count * 4), *scales = take(count * 4);
    float *values = take(rows * 4), *vectors = take(count * 4), *row_scales = take(rows * 4);
    float *thresholds = take(count * 4), *highest = take(count * 4);
    EXPORTED(shorten_rows)(codes, factors, width, 0, rows / 3, shorter);
    EXPORTED(shorten_rows)(codes, factors, width, rows / 3, rows, shorter);
    Closer closer = {NULL, 0, NULL, NULL, NULL, (uint8_t *)values, 0, 1, vectors, row_scales, thresholds, 0.25};
    Batch batch = {codes, factors, width, chosen, NULL, queries, excess, coefficients, scales, count, 0, shorter};
    int64_t found = EXPORTED(nearest_rows)(&batch, &closer, ranges, 2, &next, examined, INT64_MAX / 2, limits,
                                           out_rows, out_queries, scores, rows * count, 1, highest, nearest);
    give(shorter, rows * stride);
    give(examined, 16);
    give(&found, 8);
    give(out_rows, found * 8);
    give(out_queries, found * 8);
}

static void run_bound_pairs(void)
{
    int64_t *sizes = take(4 * 8), width = sizes[0], rows = sizes[1], count = sizes[2], pairs = sizes[3];
    uint8_t *second = take(rows * (width + 4 * TAIL_FLOATS));
    int64_t *of_rows = take(pairs * 8), *owners = take(pairs * 8);
    float *bounds = take(pairs * 4);
    int8_t *queries = take(count * width);
    int32_t *excess = take(count * 4);
    float *norms = take(count * TAIL_FLOATS * 4), *limits = take(count * 4);
    int64_t kept = EXPORTED(bound_pairs)(second, width, of_rows, owners, bounds, pairs, queries, excess, norms, limits);
    give(&kept, 8);
    give(of_rows, kept * 8);
    give(owners, kept * 8);
    give(bounds, kept * 4);
}

static void run_values(void)
{
    int64_t *sizes = take(5 * 8), is_half = sizes[0], dim = sizes[1], rows = sizes[2], count = sizes[3], pairs = sizes[4];
    uint8_t *values = take(rows * dim * (is_half ? 2 : 4));
    int64_t *of_rows = take(pairs * 8), *owners = take(pairs * 8);
    float *vectors = take(count * dim * 4), *scales = take(rows * 4), *scores = room(pairs * 4);
    float *products = room(rows * count * 4);
    double *space = room(2 * dim * 8), *dots = room(pairs * 8), *squares = room(pairs * 8);
    EXPORTED(score_pairs)(values, is_half, dim, of_rows, owners, pairs, vectors, scales, scores);
    EXPORTED(multiply_rows)(values, is_half, dim, rows, vectors, count, products);
    EXPORTED(fold_pairs)(values, is_half, dim, of_rows, owners, pairs, vectors, space, dots, squares);
    give(scores, pairs * 4);
    give(products, rows * count * 4);
    give(dots, pairs * 8);
    give(squares, pairs * 8);
}

static void run_join(void)
{
    int64_t *sizes = take(7 * 8), rows = sizes[0], k = sizes[1], dim = sizes[2], is_half = sizes[3], parts = sizes[5];
    int64_t padded = rows + 64, bytes = dim * (is_half ? 2 : 4), next[2] = {0, 0}, counts[2] = {0, 0}, stages = sizes[4];
    int64_t *widths = take(stages * 8);
    Stage stage[MOST_STAGES];
    for (int64_t number = 0; number < stages; number++) {
        uint8_t *codes = take(rows * widths[number]);
        int8_t *lanes = take(sizes[6] * widths[number]);
        int32_t *excess = take(sizes[6] * 4);
        float *rests = take(padded * 4), *errors = take(padded * 4);
        stage[number] = (Stage){codes, lanes, excess, rests, errors, widths[number], 1};
    }
    uint8_t *values = take(rows * bytes);
    int64_t *numbers = take(rows * 8), *ranges = take(parts * 16), *windows = take(sizes[6] / PANEL * 16);
    float *best = take(rows * k * 4), *reaches = take(padded * 4), *highest = room(PANEL * k * 4);
    int64_t *neighbours = take(rows * k * 8), *likely = room(PANEL * k * 8);
    double *lengths = room(rows * 8), *space = room((dim + 16) * 8), *squares = room(rows * 8);
    const uint8_t **held = room(rows * sizeof *held);
    for (int64_t row = 0; row < rows; row++) {
        lengths[row] = 1;
        held[row] = values + row * bytes;
    }
    Join join = {stage, stages, room(padded * 4), room(padded * 4), held, is_half, dim, lengths, numbers, k, best,
                 neighbours, reaches, room(rows), 0.01, 0.01, 0, rows};
    EXPORTED(join_near)(&join, windows, 1, k, next, highest, likely, space);
    EXPORTED(join_rows)(&join, ranges, parts, next + 1, counts, space);
    EXPORTED(fold_squares)(held, is_half, dim, rows, space, squares);
    give(best, rows * k * 4);
    give(neighbours, rows * k * 8);
    give(counts, 16);
    give(squares, rows * 8);
}

int main(int count, char **arguments) /* WHAT INPUT OUTPUT */
{
    FILE *input = count == 4 ? fopen(arguments[2], "rb") : NULL;
    if (!input)
        return 2;
    fseek(input, 0, SEEK_END);
    long size = ftell(input);
    rewind(input);
    next_input = aligned_alloc(64, size);
    if (!next_input || fread(next_input, 1, size, input) != (size_t)size)
        return 1;
    output = fopen(arguments[3], "wb");
    if (!strcmp(arguments[1], "rows"))
        run_bound_rows();
    else if (!strcmp(arguments[1], "closer"))
        run_closer_look();
    else if (!strcmp(arguments[1], "short"))
        run_short_codes();
    else if (!strcmp(arguments[1], "pairs"))
        run_bound_pairs();
    else if (!strcmp(arguments[1], "join"))
        run_join();
    else
        run_values();
    return fclose(output);
}
