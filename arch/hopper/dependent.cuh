// Kernels of one stream that overlap: where LaunchShape::overlaps, a kernel's blocks come to the
// multiprocessors as those of the kernel before leave them, prepare themselves and wait there,
// instead of being launched when the last has left. CUDA Programming Guide, "Programmatic Dependent
// Launch"; PTX ISA 8.5, "griddepcontrol".
#pragma once

namespace weft::hopper {

/// From here on the next kernel's blocks may come, when all of this kernel's have called it (or
/// left). First of all, so that they come wherever there is room, unless that places them badly.
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

/// Until the kernels before are complete and all that they wrote is to be seen. Before it a kernel
/// must not write, nor read what they may have written. Every kernel that overlaps calls it in some
/// thread of every block, so that "complete" includes all that came before.
__device__ inline void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Both, first of all: for kernels that have nothing to prepare.
__device__ inline void begin_in_turn() {
  let_next_begin();
  wait_for_earlier();
}

}  // namespace weft::hopper
