/* AVX-VNNI: products of unsigned with signed bytes are added up in 32 bits. */

#include "processors.h"

#if HAS_AVXVNNI
#define PROCESSOR avxvnni
#define TARGET __attribute__((target("avx2,avxvnni,fma,f16c")))
#define TILE 6
#define CODES 4
#include "ymm.h"

typedef __m256i Codes;
typedef __m256i Queries;

TARGET INLINE Integers add_bytes(Integers sums, __m256i row, __m256i query)
{
    return _mm256_dpbusd_avx_epi32(sums, row, query);
}

TARGET INLINE Queries load_queries(const int8_t *codes) { return load_codes(codes); }
TARGET INLINE Codes repeat_codes(const uint8_t *codes) { return repeat_four(codes); }

TARGET INLINE Integers add_products(Integers sums, Codes row, Queries queries)
{
    return add_bytes(sums, row, queries);
}

#include "loops.h"
#endif
