// Whether this process may use tiles: the kernel saves them at a switch of threads only for processes that asked.
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" {

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
