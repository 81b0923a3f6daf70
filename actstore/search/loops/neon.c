/* NEON with the dot product of ARMv8.2: 32 registers of 4 lanes, and products of signed bytes that are added up in 32
 * bits. The rows' codes are taken without their offset. */

#include "processors.h"

#if HAS_NEON
#include <arm_neon.h>

#define PROCESSOR neon
#if defined(__ARM_FEATURE_DOTPROD)
#define TARGET
#elif defined(__clang__)
#define TARGET __attribute__((target("dotprod")))
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define LANES 4
#define REGISTERS 4
#define TILE 5
#define CODES 4

typedef int32x4_t Integers;
typedef int8x16_t Codes;
typedef int8x16_t Queries;
typedef float32x4_t Floats;

TARGET INLINE Integers start_sums(const int32_t *excess)
{
    (void)excess; /* the offset is taken off before */
    return vdupq_n_s32(0);
}

TARGET INLINE Queries load_queries(const int8_t *codes)
{
    return vld1q_s8(codes);
}

TARGET INLINE Codes without_offset(uint8x16_t stored)
{
    return vreinterpretq_s8_u8(veorq_u8(stored, vdupq_n_u8(128)));
}

TARGET INLINE Codes repeat_codes(const uint8_t *codes)
{
    uint32_t four;
    memcpy(&four, codes, 4);
    return without_offset(vreinterpretq_u8_u32(vdupq_n_u32(four)));
}

TARGET INLINE Integers add_products(Integers sums, Codes row, Queries queries)
{
    return vdotq_s32(sums, row, queries);
}

TARGET INLINE int32_t dot_codes(const uint8_t *row, const int8_t *query, int64_t width, int32_t excess)
{
    (void)excess;
    Integers even = vdupq_n_s32(0), odd = even;
    int64_t place = 0;
    for (; place + 32 <= width; place += 32) {
        even = add_products(even, without_offset(vld1q_u8(row + place)), load_queries(query + place));
        odd = add_products(odd, without_offset(vld1q_u8(row + place + 16)), load_queries(query + place + 16));
    }
    for (; place + 16 <= width; place += 16)
        even = add_products(even, without_offset(vld1q_u8(row + place)), load_queries(query + place));
    int32_t sum = vaddvq_s32(vaddq_s32(even, odd));
    for (; place < width; place++)
        sum += ((int32_t)row[place] - 128) * query[place];
    return sum;
}

TARGET INLINE void dot_short(const uint8_t *const rows[FOUR], const int8_t *query, int64_t half, int32_t excess,
                             int32_t out[FOUR])
{
    (void)excess;
    Integers sums[FOUR] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
    int8x16_t levels = vld1q_s8(SHORT_LEVELS);
    int64_t place = 0;
    for (; place + 16 <= half; place += 16) {
        Queries low = load_queries(query + place), high = load_queries(query + half + place);
#pragma GCC unroll 4
        for (int row = 0; row < FOUR; row++) {
            uint8x16_t both = vld1q_u8(rows[row] + place);
            sums[row] = add_products(sums[row], vqtbl1q_s8(levels, vandq_u8(both, vdupq_n_u8(15))), low);
            sums[row] = add_products(sums[row], vqtbl1q_s8(levels, vshrq_n_u8(both, 4)), high);
        }
    }
    for (int row = 0; row < FOUR; row++)
        out[row] = vaddvq_s32(sums[row]) + dot_rest(rows[row], query, place, half);
}

TARGET INLINE Floats zeros(void) { return vdupq_n_f32(0); }
TARGET INLINE Floats repeat_float(float value) { return vdupq_n_f32(value); }
TARGET INLINE Floats load_floats(const float *values) { return vld1q_f32(values); }
TARGET INLINE Floats load_halves(const void *values)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)values)));
}
TARGET INLINE void store_floats(float *values, Floats held) { vst1q_f32(values, held); }
TARGET INLINE Floats to_floats(Integers sums) { return vcvtq_f32_s32(sums); }
TARGET INLINE Floats add_floats(Floats one, Floats other) { return vaddq_f32(one, other); }
TARGET INLINE Floats add_product(Floats sum, Floats one, Floats other) { return vfmaq_f32(sum, one, other); }
TARGET INLINE Floats higher(Floats one, Floats other) { return vmaxq_f32(one, other); }
TARGET INLINE Floats lower(Floats one, Floats other) { return vminq_f32(one, other); }
TARGET INLINE float sum_floats(Floats held) { return vaddvq_f32(held); }

TARGET INLINE uint32_t reaching(Floats values, Floats limits)
{
    const uint32_t bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcgeq_f32(values, limits), vld1q_u32(bits)));
}

#include "loops.h"
#endif
