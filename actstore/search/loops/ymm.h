/* Registers of 256 bits: what AVX2 and AVX-VNNI share. Their files define Codes and Queries, and
 * add_bytes: sums with the products of 32 codes of a row and a query. */

#include <immintrin.h>

#define LANES 8
#define REGISTERS 2

typedef __m256i Integers;
typedef __m256 Floats;

TARGET INLINE Integers add_bytes(Integers sums, __m256i row, __m256i query);

TARGET INLINE Integers start_sums(const int32_t *excess)
{
    return _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_loadu_si256((const __m256i *)excess));
}

TARGET INLINE __m256i load_codes(const void *codes)
{
    return _mm256_loadu_si256(codes);
}

TARGET INLINE __m256i repeat_four(const uint8_t *codes)
{
    int32_t four;
    memcpy(&four, codes, 4);
    return _mm256_set1_epi32(four);
}

TARGET INLINE int32_t sum_integers(Integers held)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(held), _mm256_extracti128_si256(held, 1));
    __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

TARGET INLINE int32_t dot_codes(const uint8_t *row, const int8_t *query, int64_t width, int32_t excess)
{
    Integers sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    int64_t place = 0;
    for (; place + 128 <= width; place += 128)
#pragma GCC unroll 4
        for (int turn = 0; turn < 4; turn++)
            sums[turn] = add_bytes(sums[turn], load_codes(row + place + 32 * turn),
                                   load_codes(query + place + 32 * turn));
    for (; place + 32 <= width; place += 32)
        sums[0] = add_bytes(sums[0], load_codes(row + place), load_codes(query + place));
    if (place < width) { /* zeros of the query leave out what is beyond */
        uint8_t rest[2][32] = {{0}};
        memcpy(rest[0], row + place, width - place);
        memcpy(rest[1], query + place, width - place);
        sums[1] = add_bytes(sums[1], load_codes(rest[0]), load_codes(rest[1]));
    }
    sums[0] = _mm256_add_epi32(_mm256_add_epi32(sums[0], sums[1]), _mm256_add_epi32(sums[2], sums[3]));
    return sum_integers(sums[0]) - excess;
}

/* excess: levels are taken 128 too large here; this is what that adds to a product. */
TARGET INLINE void dot_short(const uint8_t *const rows[FOUR], const int8_t *query, int64_t half, int32_t excess,
                             int32_t out[FOUR])
{
    Integers sums[FOUR] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                           _mm256_setzero_si256()};
    __m128i signed_levels = _mm_loadu_si128((const __m128i *)SHORT_LEVELS);
    Integers levels = _mm256_broadcastsi128_si256(_mm_xor_si128(signed_levels, _mm_set1_epi8(-128)));
    Integers fifteen = _mm256_set1_epi8(15);
    int64_t place = 0;
    for (; place + 32 <= half; place += 32) {
        __m256i low = load_codes(query + place), high = load_codes(query + half + place);
#pragma GCC unroll 4
        for (int row = 0; row < FOUR; row++) {
            __m256i both = load_codes(rows[row] + place);
            __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), fifteen);
            sums[row] = add_bytes(sums[row], _mm256_shuffle_epi8(levels, _mm256_and_si256(both, fifteen)), low);
            sums[row] = add_bytes(sums[row], _mm256_shuffle_epi8(levels, second), high);
        }
    }
    for (int64_t rest = place; rest < half; rest++) /* whose levels are not too large */
        excess -= 128 * (query[rest] + query[half + rest]);
    for (int row = 0; row < FOUR; row++)
        out[row] = sum_integers(sums[row]) - excess + dot_rest(rows[row], query, place, half);
}

TARGET INLINE Floats zeros(void) { return _mm256_setzero_ps(); }
TARGET INLINE Floats repeat_float(float value) { return _mm256_set1_ps(value); }
TARGET INLINE Floats load_floats(const float *values) { return _mm256_loadu_ps(values); }
TARGET INLINE Floats load_halves(const void *values) { return _mm256_cvtph_ps(_mm_loadu_si128(values)); }
TARGET INLINE void store_floats(float *values, Floats held) { _mm256_storeu_ps(values, held); }
TARGET INLINE Floats to_floats(Integers sums) { return _mm256_cvtepi32_ps(sums); }
TARGET INLINE Floats add_floats(Floats one, Floats other) { return _mm256_add_ps(one, other); }
TARGET INLINE Floats add_product(Floats sum, Floats one, Floats other) { return _mm256_fmadd_ps(one, other, sum); }
TARGET INLINE Floats higher(Floats one, Floats other) { return _mm256_max_ps(one, other); }
TARGET INLINE Floats lower(Floats one, Floats other) { return _mm256_min_ps(one, other); }

TARGET INLINE float sum_floats(Floats held)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(held), _mm256_extractf128_ps(held, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TARGET INLINE uint32_t reaching(Floats values, Floats limits)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(values, limits, _CMP_GE_OQ));
}
