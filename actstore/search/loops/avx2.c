/* AVX2: its product of unsigned with signed bytes adds two of them in 16 bits, and saturates above 32,767. The queries'
 * codes are made for that (query_codes.py): sizes of two neighbours add up to 128 at most, and 128 * 255 is below. */

#include "processors.h"

#if HAS_X86
#define PROCESSOR avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define TILE 5
#include "ymm.h"

TARGET INLINE Integers add_products(Integers sums, Codes row, Integers queries)
{
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(row, queries), _mm256_set1_epi16(1)));
}

#include "loops.h"
#endif
