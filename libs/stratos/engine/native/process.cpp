// What the library was built from, and what its process may and can do: the kernel saves tiles at a switch of threads only
// for processes that asked, and how long a look for another thread takes is the processor's.
#include <immintrin.h>
#include <stdint.h>
#include <time.h>
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static int64_t cpu_ns(void) {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

extern "C" {

// Digest of the sources that this library was built from.
const char *stratos_sources(void) { return STRATOS_SOURCES; }

// CPU time of `looks` for a thread that does not come, as GNU's OpenMP looks.
int64_t stratos_looks_ns(int64_t looks) {
    int flag = 0;
    const int64_t begin = cpu_ns();
    for (; looks && !__atomic_load_n(&flag, __ATOMIC_RELAXED); looks--) _mm_pause();
    return cpu_ns() - begin;
}

// 0: the build needs no permission, or the process has it now; else the system refused.
int stratos_permit(void) {
#if defined(__AMX_BF16__)
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM and the state's number
    return (int)syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
    return 0;
#endif
}

}  // extern "C"
