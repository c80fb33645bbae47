#include "arch/cpu/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weft::cpu {

bool has_amx_bf16() {
  static const bool has = [] {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    constexpr unsigned kBf16 = 1u << 22;
    constexpr unsigned kTiles = 1u << 24;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kBf16) == 0 ||
        (edx & kTiles) == 0) {
      return false;
    }
    // Linux, Documentation/arch/x86/xstate.rst: the registers' state is large, so it is saved for
    // those who ask.
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

}  // namespace weft::cpu
