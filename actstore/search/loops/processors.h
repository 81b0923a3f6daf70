/* What the files of the processors share: which of them are compiled here. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define FOUR 4 /* rows whose short codes are multiplied at a time: shorter.py */

/* What short codes stand for: of numbers that are spread normally around zero these 16 lose least, where 46 of them are
 * the deviation. */
#define LEVEL_OF_ONE 46.0
static const int8_t SHORT_LEVELS[16] = {-126, -95, -74, -58, -43, -30, -18, -6, 6, 18, 30, 43, 58, 74, 95, 126};

/* Of a row's short codes, the product of those from a place on. */
INLINE int32_t dot_rest(const uint8_t *row, const int8_t *query, int64_t place, int64_t half)
{
    int32_t sum = 0;
    for (; place < half; place++)
        sum += SHORT_LEVELS[row[place] & 15] * query[place] + SHORT_LEVELS[row[place] >> 4] * query[half + place];
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
