/* AVX2: its product of unsigned with signed bytes adds two of them in 16 bits, and saturates above 32,767. The queries'
 * codes are made for that (encode_queries of levels.py): where four products are added in 16 bits, the sizes of the
 * query's codes add up to 128 at most, and 128 * 255 is below. Sums of 16 bits are widened by a product with ones, which costs as much as
 * the product of bytes: four at a time are a third faster than two. */

#include "processors.h"

#if HAS_X86
#define PROCESSOR avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define TILE 4
#define CODES 8
#include "ymm.h"

typedef struct {
    __m256i fours[2];
} Codes;
typedef Codes Queries;

TARGET INLINE Integers add_widened(Integers sums, __m256i pairs)
{
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

TARGET INLINE Integers add_bytes(Integers sums, __m256i row, __m256i query)
{
    return add_widened(sums, _mm256_maddubs_epi16(row, query));
}

TARGET INLINE Queries load_queries(const int8_t *codes) /* the next four of a panel of 16 queries follow 64 bytes on */
{
    return (Queries){{load_codes(codes), load_codes(codes + 64)}};
}

TARGET INLINE Codes repeat_codes(const uint8_t *codes)
{
    return (Codes){{repeat_four(codes), repeat_four(codes + 4)}};
}

TARGET INLINE Integers add_products(Integers sums, Codes row, Queries queries)
{
    __m256i one = _mm256_maddubs_epi16(row.fours[0], queries.fours[0]);
    __m256i two = _mm256_maddubs_epi16(row.fours[1], queries.fours[1]);
    return add_widened(sums, _mm256_add_epi16(one, two));
}

#include "loops.h"
#endif
