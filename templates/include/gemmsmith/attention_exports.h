/* The two functions that a library of attention kernels exports, over the table
 * gemmsmith::kAttentionKernels that the including file defines. Included once, last. */
#pragma once

#include "gemmsmith/attention_abi.h"

extern "C" {

GEMMSMITH_EXPORT int32_t gemmsmith_abi_version(void) { return GEMMSMITH_ABI_VERSION; }

GEMMSMITH_EXPORT const gemmsmith_attention_kernel *gemmsmith_attention_kernels(int32_t *count) {
  *count = static_cast<int32_t>(sizeof(gemmsmith::kAttentionKernels) / sizeof(gemmsmith::kAttentionKernels[0]));
  return gemmsmith::kAttentionKernels;
}

}  // extern "C"
