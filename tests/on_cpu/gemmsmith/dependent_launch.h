/* templates/include/gemmsmith/dependent_launch.h, whose wait is that of the CPU's machine. */
#pragma once

#include "gemmsmith/warp_instructions.h"

#define await_prerequisites awaits_on_a_gpu
#include_next "gemmsmith/dependent_launch.h"
#undef await_prerequisites

namespace gemmsmith {

inline void await_prerequisites() { emulated::await_grid_ahead(); }

}  // namespace gemmsmith
