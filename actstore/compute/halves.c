/* float16 values to float32 and their crc32c in one pass over memory: the conversion waits for memory, the crc is
 * computed meanwhile. Called through ctypes, see tensors.py; elsewhere both are done one after the other. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2,f16c")))

int halves_run(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq");
}

/* The remainders that move 128 bits of a message on by so many bits: x^(bits + 32) and x^(bits - 32) modulo the
 * polynomial of crc32c, in its reflected order and shifted by one, as a product of 64 by 64 bits has only 127. */
#define ON_2048 _mm_set_epi64x(0xb9e02b86, 0xdcb17aa4)
#define ON_512 _mm_set_epi64x(0x9e4addf8, 0x740eef02)

TARGET static inline __m512i fold(__m512i state, __m512i on, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(state, on, 0x00), high = _mm512_clmulepi64_epi128(state, on, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* all three added, modulo 2 */
}

TARGET static inline __m512i convert(const uint8_t *from, float *to)
{
    __m512i values = _mm512_loadu_si512(from);
    _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm512_castsi512_si256(values)));
    _mm512_storeu_ps(to + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(values, 1)));
    return values;
}

/* The crc of what `crc` covers followed by `bytes` bytes of float16 values, which `to` gets as float32. */
TARGET uint32_t convert_halves(const uint8_t *from, int64_t bytes, float *to, uint32_t crc)
{
    int64_t at = 0;
    crc = ~crc;
    if (bytes >= 256) {
        __m512i on = _mm512_broadcast_i32x4(ON_2048), state[4];
        for (; at < 256; at += 64)
            state[at / 64] = convert(from + at, to + at / 2);
        state[0] = _mm512_xor_si512(state[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
        for (; at + 256 <= bytes; at += 256)
            for (int part = 0; part < 4; part++)
                state[part] = fold(state[part], on, convert(from + at + 64 * part, to + at / 2 + 32 * part));
        on = _mm512_broadcast_i32x4(ON_512);
        for (int part = 1; part < 4; part++)
            state[part] = fold(state[part - 1], on, state[part]);
        uint64_t words[8], rest = 0;
        _mm512_storeu_si512(words, state[3]);
        for (int word = 0; word < 8; word++)
            rest = _mm_crc32_u64(rest, words[word]);
        crc = (uint32_t)rest;
    }
    for (; at + 2 <= bytes; at += 2) {
        uint16_t value;
        memcpy(&value, from + at, 2);
        crc = _mm_crc32_u16(crc, value);
        to[at / 2] = _cvtsh_ss(value);
    }
    return ~crc;
}
#else
int halves_run(void)
{
    return 0;
}
#endif
