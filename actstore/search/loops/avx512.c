/* AVX-512 VNNI: 32 registers of 16 lanes, and products of unsigned with signed bytes that are added up in 32 bits. */

#include "processors.h"

#if HAS_X86
#include <immintrin.h>

#define PROCESSOR avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")))
#define LANES 16
#define REGISTERS 2
#define TILE 8
#define CODES 4

typedef __m512i Integers;
typedef __m512i Codes;
typedef __m512i Queries;
typedef __m512 Floats;

TARGET INLINE Integers start_sums(const int32_t *excess)
{
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(excess));
}

TARGET INLINE Queries load_queries(const int8_t *codes)
{
    return _mm512_loadu_si512(codes);
}

TARGET INLINE Codes repeat_codes(const uint8_t *codes)
{
    int32_t four;
    memcpy(&four, codes, 4);
    return _mm512_set1_epi32(four);
}

TARGET INLINE Integers add_products(Integers sums, Codes row, Queries queries)
{
    return _mm512_dpbusd_epi32(sums, row, queries);
}

TARGET INLINE int32_t dot_codes(const uint8_t *row, const int8_t *query, int64_t width, int32_t excess)
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
    return _mm512_reduce_add_epi32(_mm512_add_epi32(even, odd)) - excess;
}

TARGET INLINE void add_short(Integers sums[FOUR], const uint8_t *const rows[FOUR], int64_t place, __mmask64 inside,
                             Integers low, Integers high, Integers levels)
{
    Integers fifteen = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int row = 0; row < FOUR; row++) {
        Integers both = _mm512_maskz_loadu_epi8(inside, rows[row] + place);
        Integers first = _mm512_shuffle_epi8(levels, _mm512_and_si512(both, fifteen));
        Integers second = _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srli_epi16(both, 4), fifteen));
        sums[row] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums[row], first, low), second, high);
    }
}

/* excess: levels are taken 128 too large here; this is what that adds to a product. */
TARGET INLINE void dot_short(const uint8_t *const rows[FOUR], const int8_t *query, int64_t half, int32_t excess,
                             int32_t out[FOUR])
{
    Integers sums[FOUR] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                           _mm512_setzero_si512()};
    __m128i signed_levels = _mm_loadu_si128((const __m128i *)SHORT_LEVELS);
    Integers levels = _mm512_broadcast_i32x4(_mm_xor_si128(signed_levels, _mm_set1_epi8(-128)));
    int64_t place = 0;
    for (; place + 64 <= half; place += 64)
        add_short(sums, rows, place, ~0ULL, _mm512_loadu_si512(query + place), _mm512_loadu_si512(query + half + place),
                  levels);
    if (place < half) {
        __mmask64 inside = (1ULL << (half - place)) - 1;
        add_short(sums, rows, place, inside, _mm512_maskz_loadu_epi8(inside, query + place),
                  _mm512_maskz_loadu_epi8(inside, query + half + place), levels);
    }
    Integers one = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[0], sums[1]), _mm512_unpackhi_epi32(sums[0], sums[1]));
    Integers two = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[2], sums[3]), _mm512_unpackhi_epi32(sums[2], sums[3]));
    Integers all = _mm512_add_epi32(_mm512_unpacklo_epi64(one, two), _mm512_unpackhi_epi64(one, two));
    __m256i part = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(part), _mm256_extracti128_si256(part, 1));
    _mm_storeu_si128((__m128i *)out, _mm_sub_epi32(four, _mm_set1_epi32(excess)));
}

TARGET INLINE Floats zeros(void) { return _mm512_setzero_ps(); }
TARGET INLINE Floats repeat_float(float value) { return _mm512_set1_ps(value); }
TARGET INLINE Floats load_floats(const float *values) { return _mm512_loadu_ps(values); }
TARGET INLINE Floats load_halves(const void *values) { return _mm512_cvtph_ps(_mm256_loadu_si256(values)); }
TARGET INLINE void store_floats(float *values, Floats held) { _mm512_storeu_ps(values, held); }
TARGET INLINE Floats to_floats(Integers sums) { return _mm512_cvtepi32_ps(sums); }
TARGET INLINE Floats add_floats(Floats one, Floats other) { return _mm512_add_ps(one, other); }
TARGET INLINE Floats add_product(Floats sum, Floats one, Floats other) { return _mm512_fmadd_ps(one, other, sum); }
TARGET INLINE Floats higher(Floats one, Floats other) { return _mm512_max_ps(one, other); }
TARGET INLINE Floats lower(Floats one, Floats other) { return _mm512_min_ps(one, other); }
TARGET INLINE float sum_floats(Floats held) { return _mm512_reduce_add_ps(held); }

TARGET INLINE uint32_t reaching(Floats values, Floats limits)
{
    return _mm512_cmp_ps_mask(values, limits, _CMP_GE_OQ);
}

#include "loops.h"
#endif
