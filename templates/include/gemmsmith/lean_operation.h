/* The functions of a lean kernel's table entry: what calls it takes, its tensor maps, its launch. */
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "cute/arch/copy_sm90_desc.hpp"
#include "cutlass/cuda_host_adapter.hpp"
#include "gemmsmith/abi.h"
#include "gemmsmith/cluster_launch.h"
#include "gemmsmith/host.h"
#include "gemmsmith/lean_gemm.h"
#include "gemmsmith/status.h"

namespace gemmsmith {

/* `Kernel` derives from LeanGemm<Traits>; its name is what a profiler shows. */
template <class Traits, class Kernel>
struct LeanOperation {
  using Params = typename Kernel::Params;

  /* Rows of one operand, contiguous along K: `rows` to a box, 128 bytes of each. */
  static gemmsmith_status encode(CUtensorMap *map, void const *data, int64_t k, int64_t extent, int64_t leading,
                                 int64_t batch, int64_t batch_stride, int rows) {
    constexpr int kSize = sizeof(typename Kernel::Element);
    cuuint64_t const sizes[3] = {cuuint64_t(k), cuuint64_t(extent), cuuint64_t(batch_stride ? batch : 1)};
    /* With one matrix the last stride is not stepped; it must be a multiple of 16 bytes nonetheless. */
    cuuint64_t const strides[2] = {cuuint64_t(leading) * kSize,
                                   cuuint64_t(batch_stride ? batch_stride : leading) * kSize};
    cuuint32_t const box[3] = {cuuint32_t(Kernel::kSlabElements), cuuint32_t(rows), 1};
    cuuint32_t const steps[3] = {1, 1, 1};
    CUresult const result = CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
        map, cute::TMA::to_CUtensorMapDataType<typename Kernel::Element>(), 3, const_cast<void *>(data), sizes, strides,
        box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? 0 : status_of(cutlass::Status::kErrorInvalidProblem);
  }

  static int64_t tiles(int64_t extent, int tile, int cluster) {
    int64_t const count = (extent + tile - 1) / tile;
    return (count + cluster - 1) / cluster * cluster;
  }
  /* The grid's axes. */
  static int64_t tiles_of_tokens(gemmsmith_gemm const &call) {
    return tiles(call.m, Kernel::kTokens, Kernel::kClusterX);
  }
  static int64_t tiles_of_features(gemmsmith_gemm const &call) {
    return tiles(call.n, Kernel::kFeatures, Kernel::kClusterY);
  }

  static gemmsmith_status can_run(gemmsmith_gemm const *call) {
    gemmsmith_status const sizes = check_sizes(*call);
    if (sizes != 0) {
      return sizes;
    }
    /* What is counted in 32 bits goes up to whole tiles. */
    if (tiles_of_tokens(*call) * Kernel::kTokens > INT32_MAX || call->k > INT32_MAX - Kernel::kTileK ||
        tiles_of_features(*call) > 65535 || call->batch * Kernel::kSplits > 65535) {
      return status_of(cutlass::Status::kErrorInvalidProblem);
    }
    /* TMA reads 16 bytes at a time, the epilogue reads and writes four elements. */
    auto in = [](int64_t elements) { return elements * int64_t(sizeof(typename Kernel::Element)) % 16 == 0; };
    auto address = [](void const *pointer, int64_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; };
    constexpr int64_t kOut = 4 * sizeof(typename Kernel::ElementD);
    bool const source = Traits::kResidual && call->c != nullptr && call->beta != 0.0f;
    if (!address(call->a, 16) || !address(call->b, 16) || !in(call->lda) || !in(call->ldb) || !in(call->a_batch) ||
        !in(call->b_batch) || !address(call->d, kOut) || call->n % 4 || call->ldd % 4 || call->d_batch % 4 ||
        (source && (!address(call->c, kOut) || call->ldc % 4 || call->c_batch % 4))) {
      return status_of(cutlass::Status::kErrorMisalignedOperand);
    }
    return 0;
  }

  static gemmsmith_status workspace_bytes(gemmsmith_gemm const *, uint64_t *bytes) {
    *bytes = 0;
    return 0;
  }

  static gemmsmith_status launch(gemmsmith_gemm const *call, void *, void *stream) {
    auto *kernel = lean_gemm<Kernel>;
    gemmsmith_status status = allow_shared_memory<Kernel>(kernel, Kernel::kSharedBytes, call->device);
    if (status != 0) {
      return status;
    }
    Params params{};
    constexpr int kRowsM = Kernel::kTileM / Kernel::kClusterN, kRowsN = Kernel::kTileN / Kernel::kClusterM;
    status = encode(Kernel::kSwap ? &params.map_n : &params.map_m, call->a, call->k, call->m, call->lda, call->batch,
                    call->a_batch, Kernel::kSwap ? kRowsN : kRowsM);
    if (status != 0) {
      return status;
    }
    status = encode(Kernel::kSwap ? &params.map_m : &params.map_n, call->b, call->k, call->n, call->ldb, call->batch,
                    call->b_batch, Kernel::kSwap ? kRowsM : kRowsN);
    if (status != 0) {
      return status;
    }
    /* Weights that one row of clusters reads, of one matrix of the batch, are not needed again. */
    int64_t const readers = tiles_of_tokens(*call) / Kernel::kClusterX * (call->b_batch ? 1 : call->batch);
    auto const once = static_cast<uint64_t>(readers == 1 ? cute::TMA::CacheHintSm90::EVICT_FIRST
                                                         : cute::TMA::CacheHintSm90::EVICT_NORMAL);
    auto const normal = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    params.hint_m = Kernel::kSwap ? once : normal;
    params.hint_n = Kernel::kSwap ? normal : once;
    params.batched_m = (Kernel::kSwap ? call->b_batch : call->a_batch) != 0;
    params.batched_n = (Kernel::kSwap ? call->a_batch : call->b_batch) != 0;
    params.tokens = static_cast<int>(call->m);
    params.features = static_cast<int>(call->n);
    params.k_tiles = static_cast<int>((call->k + Kernel::kTileK - 1) / Kernel::kTileK);
    params.d = static_cast<typename Kernel::ElementD *>(call->d);
    params.c = call->beta == 0.0f ? nullptr : static_cast<typename Kernel::ElementD const *>(call->c);
    params.bias = static_cast<typename Traits::ElementBias const *>(call->bias);
    params.a_scale = call->a_scale;
    params.b_scale = call->b_scale;
    params.ldc = call->ldc;
    params.ldd = call->ldd;
    params.c_batch = call->c_batch;
    params.d_batch = call->d_batch;
    params.beta = call->beta;
    params.finish = {call->alpha, call->out_scale, static_cast<Activation>(call->activation)};

    dim3 const grid(static_cast<unsigned>(tiles_of_tokens(*call)), static_cast<unsigned>(tiles_of_features(*call)),
                    static_cast<unsigned>(call->batch * Kernel::kSplits));
    dim3 const cluster(Kernel::kClusterX, Kernel::kClusterY, Kernel::kSplits);
    return launch_clusters<Traits::kDependentLaunch>(kernel, grid, dim3(Kernel::kThreads), Kernel::kSharedBytes,
                                                     cluster, stream, params);
  }

  static gemmsmith_status blocks_per_sm(int32_t *blocks) {
    return count_blocks_per_sm<Kernel>(lean_gemm<Kernel>, Kernel::kThreads, Kernel::kSharedBytes, blocks);
  }

  static constexpr gemmsmith_kernel entry(const char *name) {
    return {name,    Kernel::kThreads, Kernel::kSharedBytes, Kernel::kStages, Traits::kDependentLaunch,
            can_run, workspace_bytes, launch, blocks_per_sm, explain};
  }
};

}  // namespace gemmsmith
