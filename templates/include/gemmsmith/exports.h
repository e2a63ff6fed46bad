/* The two functions that a kernel library exports, over the table gemmsmith::kKernels that the
 * including file defines. Included once, last. */
#pragma once

#include "gemmsmith/abi.h"

extern "C" {

GEMMSMITH_EXPORT int32_t gemmsmith_abi_version(void) { return GEMMSMITH_ABI_VERSION; }

GEMMSMITH_EXPORT const gemmsmith_kernel *gemmsmith_kernels(int32_t *count) {
  *count = static_cast<int32_t>(sizeof(gemmsmith::kKernels) / sizeof(gemmsmith::kKernels[0]));
  return gemmsmith::kKernels;
}

}  // extern "C"
