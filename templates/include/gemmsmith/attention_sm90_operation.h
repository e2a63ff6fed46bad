/* The functions of a Hopper attention kernel's table entry: what calls it takes, its tensor maps, its
 * launch. */
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "cute/arch/copy_sm90_desc.hpp"
#include "cutlass/cuda_host_adapter.hpp"
#include "gemmsmith/attention_call.h"
#include "gemmsmith/attention_sm90.h"
#include "gemmsmith/cluster_launch.h"
#include "gemmsmith/host.h"
#include "gemmsmith/status.h"

namespace gemmsmith {

/* `Kernel` derives from Attention<Traits>; its name is what a profiler shows. */
template <class Traits, class Kernel>
struct AttentionOperation {
  using Params = typename Kernel::Params;
  using Element = typename Traits::Element;
  static constexpr int kVector = 16 / int(sizeof(Element)); /* elements that TMA and stores move together */
  static constexpr int64_t kL2Bytes = 24 << 20;             /* of keys and values that heads side by side read */

  /* Rows of one operand, contiguous along the head: `rows` to a box, 128 bytes of each. */
  static gemmsmith_status encode(CUtensorMap *map, void const *data, int64_t head_dim, int64_t extent, int64_t heads,
                                 int64_t batch, int64_t row, int64_t head, int64_t sequence, int rows) {
    /* A dimension of one is not stepped; its stride must be a multiple of 16 bytes nonetheless. */
    auto bytes = [](int64_t count, int64_t stride) {
      return cuuint64_t(count > 1 ? stride : kVector) * sizeof(Element);
    };
    cuuint64_t const sizes[4] = {cuuint64_t(head_dim), cuuint64_t(extent), cuuint64_t(heads), cuuint64_t(batch)};
    cuuint64_t const strides[3] = {bytes(extent, row), bytes(heads, head), bytes(batch, sequence)};
    cuuint32_t const box[4] = {cuuint32_t(Kernel::kSlabElements), cuuint32_t(rows), 1, 1};
    cuuint32_t const steps[4] = {1, 1, 1, 1};
    CUresult const result = CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
        map, cute::TMA::to_CUtensorMapDataType<Element>(), 4, const_cast<void *>(data), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? 0 : status_of(cutlass::Status::kErrorInvalidProblem);
  }

  static gemmsmith_status can_run(gemmsmith_attention const *call) {
    bool const packed = call->cu_q != nullptr;
    for (int64_t size : {call->batch, call->queries, call->keys, call->heads, call->kv_heads, call->head_dim,
                         packed ? call->tokens_q : 1, packed ? call->tokens_k : 1}) {
      if (size < 1 || size > INT32_MAX / 2) {
        return status_of(cutlass::Status::kErrorInvalidProblem);
      }
    }
    if (call->head_dim > Kernel::kHead || call->heads % call->kv_heads != 0 || !(call->scale > 0.0f) ||
        !(call->softcap >= 0.0f) || call->window < 0 || (call->window > 0 && !call->causal) ||
        row_tiles(*call, Kernel::kTileQueries) * call->heads > INT32_MAX / 2 / call->batch) {
      return status_of(cutlass::Status::kErrorInvalidProblem);
    }
    if (call->block_table != nullptr || call->splits > 1 || call->new_k != nullptr ||
        packed != (call->cu_k != nullptr)) {
      return status_of(cutlass::Status::kErrorNotSupported);
    }
    bool const aligned = call->head_dim % kVector == 0 && is_aligned(*call, kVector, 1);
    return aligned ? 0 : status_of(cutlass::Status::kErrorMisalignedOperand);
  }

  static gemmsmith_status needs(gemmsmith_attention const *, uint64_t *workspace, uint64_t *counters) {
    *workspace = *counters = 0;
    return 0;
  }

  static gemmsmith_status launch(gemmsmith_attention const *call, void *, void *stream) {
    auto *kernel = attention<Kernel>;
    gemmsmith_status status = allow_shared_memory<Kernel>(kernel, Kernel::kSharedBytes, call->device);
    if (status != 0) {
      return status;
    }
    Params params{};
    AttentionExtents const extents = extents_of(*call);
    status = encode(&params.map_q, call->q, call->head_dim, extents.rows_q, call->heads, extents.sequences, call->q_row,
                    call->q_head, call->q_batch, Kernel::kTileQueries);
    if (status == 0) {
      status = encode(&params.map_k, call->k, call->head_dim, extents.rows_k, call->kv_heads, extents.sequences,
                      call->k_row, call->k_head, call->k_batch, Kernel::kTileKeys);
    }
    if (status == 0) {
      status = encode(&params.map_v, call->v, call->head_dim, extents.rows_k, call->kv_heads, extents.sequences,
                      call->v_row, call->v_head, call->v_batch, Kernel::kTileKeys);
    }
    if (status != 0) {
      return status;
    }
    params.work = work_of(*call, Kernel::kTileQueries, sizeof(Element), kL2Bytes);
    params.out = call->out;
    params.out_batch = call->out_batch;
    params.out_row = call->out_row;
    params.out_head = call->out_head;
    params.scale = call->softcap > 0.0f ? 2.0f * kLog2e * call->scale / call->softcap : kLog2e * call->scale;
    params.cap = call->softcap;

    int const blocks = call->sm_count > 0 ? std::min(params.work.tiles, call->sm_count) : params.work.tiles;
    return launch_clusters<Traits::kDependentLaunch>(kernel, dim3(unsigned(blocks)), dim3(Kernel::kThreads),
                                                     Kernel::kSharedBytes, dim3(1), stream, params);
  }

  static constexpr gemmsmith_attention_kernel entry(const char *name) {
    return {name,    Kernel::kThreads, Kernel::kSharedBytes, Kernel::kStages, Traits::kDependentLaunch,
            can_run, needs,            launch,               explain};
  }
};

}  // namespace gemmsmith
