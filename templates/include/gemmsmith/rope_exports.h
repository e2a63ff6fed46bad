/* The two functions that a library of rotary kernels exports, over the table
 * gemmsmith::kRopeKernels that the including file defines. Included once, last. */
#pragma once

#include "gemmsmith/rope_abi.h"

extern "C" {

GEMMSMITH_EXPORT int32_t gemmsmith_abi_version(void) { return GEMMSMITH_ABI_VERSION; }

GEMMSMITH_EXPORT const gemmsmith_rope_kernel *gemmsmith_rope_kernels(int32_t *count) {
  *count = static_cast<int32_t>(sizeof(gemmsmith::kRopeKernels) / sizeof(gemmsmith::kRopeKernels[0]));
  return gemmsmith::kRopeKernels;
}

}  // extern "C"
