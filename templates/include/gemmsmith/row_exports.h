/* The two functions that a library of row kernels exports, over the table gemmsmith::kRowKernels
 * that the including file defines. Included once, last. */
#pragma once

#include "gemmsmith/abi.h"

extern "C" {

GEMMSMITH_EXPORT int32_t gemmsmith_abi_version(void) { return GEMMSMITH_ABI_VERSION; }

GEMMSMITH_EXPORT const gemmsmith_row_kernel *gemmsmith_row_kernels(int32_t *count) {
  *count = static_cast<int32_t>(sizeof(gemmsmith::kRowKernels) / sizeof(gemmsmith::kRowKernels[0]));
  return gemmsmith::kRowKernels;
}

}  // extern "C"
