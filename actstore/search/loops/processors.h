/* What the files of the processors share: which of them are compiled here. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define FOUR 4 /* rows whose short codes are multiplied at a time: shorter.py */

/* Of a row's short codes, the product of those from a place on. */
INLINE int32_t dot_rest(const uint8_t *row, const int8_t *query, int64_t place, int64_t half)
{
    int32_t sum = 0;
    for (; place < half; place++)
        sum += (row[place] & 15) * query[place] + (row[place] >> 4) * query[half + place];
    return sum;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_X86 1
#if defined(__clang__) || __GNUC__ >= 11
#define HAS_AVXVNNI 1 /* older compilers do not know the instructions */
#endif
#elif defined(__aarch64__) && defined(__GNUC__)
#if defined(__ARM_FEATURE_DOTPROD) || !defined(__clang__) || __clang_major__ >= 16
#define HAS_NEON 1 /* an older clang has the dot product only where every processor has it, as at Apple's */
#endif
#endif
