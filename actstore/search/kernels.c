/* Which of the compiled loops (loops/) this processor can run. Called through ctypes, see compiled.py; where there are
 * none, the same is done by torch. */

#include "loops/processors.h"

#define VERSION 8 /* of the functions' arguments and of what they write, see compiled.py */

#if HAS_X86
#include <cpuid.h>

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#if HAS_AVXVNNI
static int has_avxvnni(void) /* which compilers learnt to ask for later than to use it */
{
    unsigned int a = 0, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#elif HAS_NEON
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static int has_neon(void)
{
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
    return 1; /* each of its ARM processors has the dot product */
#else
    return 0;
#endif
}
#endif

int kernels_version(void)
{
    return VERSION;
}

/* Whether this processor can run the loops of that name, if they are compiled. */
int kernels_run(const char *processor)
{
#if HAS_X86
    __builtin_cpu_init();
    if (!strcmp(processor, "avx512"))
        return has_avx512();
    if (!strcmp(processor, "avx2"))
        return has_avx2();
#if HAS_AVXVNNI
    if (!strcmp(processor, "avxvnni"))
        return has_avxvnni();
#endif
#elif HAS_NEON
    if (!strcmp(processor, "neon"))
        return has_neon();
#endif
    (void)processor;
    return 0;
}
