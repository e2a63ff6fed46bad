/* Starts attention_mma_sync.h's kernels: what a call must be like, and the memory that it needs. */
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "gemmsmith/attention_call.h"
#include "gemmsmith/attention_mma_sync.h"
#include "gemmsmith/host.h"

namespace gemmsmith {

/* Why a kernel does not take a call; its explain() words them. */
enum MmaSyncStatus : gemmsmith_status {
  kMmaSyncRuns = 0,
  kMmaSyncSizes = 1,
  kMmaSyncAlignment = 2,
  kMmaSyncHeadDim = 3,
  kMmaSyncScores = 4,
  kMmaSyncPages = 5,
  kMmaSyncFar = 6,
  kMmaSyncMemory = 7,
};

inline const char *explain_mma_sync(gemmsmith_status status) {
  switch (status) {
    case kMmaSyncRuns:
      return "success";
    case kMmaSyncSizes:
      return "a size is out of range";
    case kMmaSyncAlignment:
      return "addresses and strides must be multiples of 16 bytes";
    case kMmaSyncHeadDim:
      return "head_dim must be a multiple of 8, no larger than the kernel's";
    case kMmaSyncScores:
      return "scores are neither capped nor cut to a window";
    case kMmaSyncPages:
      return "block tables are not read, nor are keys split or appended";
    case kMmaSyncFar:
      return "the keys of a sequence lie further apart than 2^31 elements";
    case kMmaSyncMemory:
      return "workspace is missing";
    default:
      return status < 0 ? cudaGetErrorString(static_cast<cudaError_t>(-status)) : "unknown status";
  }
}

/* `Kernel` derives from MmaSyncAttention<Traits>; its name is what a profiler shows. */
template <class Traits, class Kernel>
struct MmaSyncAttentionOperation {
  using Params = typename Kernel::Params;
  static constexpr int64_t kVector = 16 / int64_t(sizeof(typename Kernel::Element));
  static constexpr int64_t kMost = 1 << 30;
  static constexpr int64_t kL2Bytes = 4 << 20; /* of a T4, the smallest of them */

  static int64_t rows(gemmsmith_attention const &call) {
    return call.cu_q != nullptr ? call.tokens_q : call.batch * call.queries;
  }

  static gemmsmith_status can_run(gemmsmith_attention const *given) {
    gemmsmith_attention const &call = *given;
    bool const packed = call.cu_q != nullptr;
    for (int64_t size : {call.batch, call.queries, call.keys, call.heads, call.kv_heads, packed ? call.tokens_q : 1,
                         packed ? call.tokens_k : 1}) {
      if (size < 1 || size > kMost) {
        return kMmaSyncSizes;
      }
    }
    if (call.heads % call.kv_heads != 0 || packed != (call.cu_k != nullptr) ||
        row_tiles(call, Kernel::kTileQueries) * call.heads > kMost / call.batch) {
      return kMmaSyncSizes;
    }
    if (call.head_dim < 1 || call.head_dim > Kernel::kHead || call.head_dim % kVector != 0) {
      return kMmaSyncHeadDim;
    }
    if (call.softcap != 0.0f || (call.window != 0 && call.window < call.keys)) {
      return kMmaSyncScores;
    }
    if (call.block_table != nullptr || call.splits > 1 || call.new_k != nullptr) {
      return kMmaSyncPages;
    }
    if (!is_aligned(call, kVector, 0)) {
      return kMmaSyncAlignment;
    }
    /* From a sequence's first key, and from a tile's first query, the kernel counts elements in 32 bits. */
    auto near = [](int64_t count, int64_t reach, int64_t stride) { return count <= 1 || stride <= INT32_MAX / reach; };
    int64_t const reach = call.keys + Kernel::kTileKeys;
    AttentionExtents const extents = extents_of(call);
    bool const reached = near(extents.rows_k, reach, call.k_row) && near(extents.rows_k, reach, call.v_row) &&
                         near(extents.rows_q, Kernel::kTileQueries, call.q_row) &&
                         near(extents.rows_q, Kernel::kTileQueries, call.out_row);
    return reached ? kMmaSyncRuns : kMmaSyncFar;
  }

  static gemmsmith_status needs(gemmsmith_attention const *call, uint64_t *workspace, uint64_t *counters) {
    *workspace = *counters = 0;
    gemmsmith_status const status = can_run(call);
    if (status == 0 && Kernel::kNeedsSums) {
      *workspace = uint64_t(rows(*call) * call->heads * call->head_dim) * sizeof(float);
    }
    return status;
  }

  static gemmsmith_status launch(gemmsmith_attention const *call, void *workspace, void *stream) {
    gemmsmith_status status = can_run(call);
    if (status != 0) {
      return status;
    }
    if (Kernel::kNeedsSums && workspace == nullptr) {
      return kMmaSyncMemory;
    }
    auto *kernel = attention_mma_sync<Kernel>;
    status = allow_shared_memory<Kernel>(kernel, Kernel::kSharedBytes, call->device);
    if (status != 0) {
      return status;
    }
    Params params{};
    params.work = work_of(*call, Kernel::kTileQueries, sizeof(typename Kernel::Element), kL2Bytes);
    params.q = call->q;
    params.k = call->k;
    params.v = call->v;
    params.out = call->out;
    params.sums = static_cast<float *>(workspace);
    params.q_batch = call->q_batch;
    params.q_head = call->q_head;
    params.k_batch = call->k_batch;
    params.k_head = call->k_head;
    params.v_batch = call->v_batch;
    params.v_head = call->v_head;
    params.out_batch = call->out_batch;
    params.out_head = call->out_head;
    /* The kernel computes the addresses of rows that are not there, which must be aligned. */
    auto step = [](int64_t count, int64_t stride) { return int32_t(count > 1 ? stride : kVector); };
    AttentionExtents const extents = extents_of(*call);
    params.q_row = step(extents.rows_q, call->q_row);
    params.out_row = step(extents.rows_q, call->out_row);
    params.k_row = step(extents.rows_k, call->k_row);
    params.v_row = step(extents.rows_k, call->v_row);
    params.tokens_q = int32_t(call->tokens_q);
    params.scale = call->scale;
    void *arguments[] = {&params};
    return status_of(cudaLaunchKernel(reinterpret_cast<void const *>(kernel), dim3(unsigned(params.work.tiles)),
                                      dim3(32, Kernel::kThreads / 32), arguments, size_t(Kernel::kSharedBytes),
                                      static_cast<cudaStream_t>(stream)));
  }

  static constexpr gemmsmith_attention_kernel entry(const char *name) {
    return {name,    Kernel::kThreads, Kernel::kSharedBytes, Traits::kStages, 0,
            can_run, needs,            launch,               explain_mma_sync};
  }
};

}  // namespace gemmsmith
