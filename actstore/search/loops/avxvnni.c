/* AVX-VNNI: products of unsigned with signed bytes are added up in 32 bits. */

#include "processors.h"

#if HAS_AVXVNNI
#define PROCESSOR avxvnni
#define TARGET __attribute__((target("avx2,avxvnni,fma,f16c")))
#define TILE 6
#include "ymm.h"

TARGET INLINE Integers add_products(Integers sums, Codes row, Integers queries)
{
    return _mm256_dpbusd_avx_epi32(sums, row, queries);
}

#include "loops.h"
#endif
