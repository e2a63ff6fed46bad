/* A GEMM on Hopper's wgmma and TMA with a main loop of its own: few tokens, few tiles, deep pipelines.
 *
 * One block computes one tile. A producer warp keeps kStages buffers of both operands in flight, one or
 * more warpgroups multiply them, and blocks of a cluster share operands by multicast. With kSplits > 1
 * as many blocks of a cluster share the K loop of a tile; each then sums a part of the tile over their
 * shared memories, always in the same order. Sums pass through shared memory as they are (f32, int32), so
 * that they are finished in the layout of D and rounded once.
 *
 * `Traits` decides all types and is what the template generates. They speak in the caller's frame
 * (D = A B) except for tile and cluster, which are the device's. "M side" and "N side" below are those of
 * the instruction: A and B, or with kSwap B and A. Operands are contiguous along K, D along its columns.
 */
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/hopper_instructions.h"
#include "gemmsmith/lean_epilogue.h"
#include "gemmsmith/lean_shape.h"

namespace gemmsmith {

template <class Traits>
struct LeanGemm : LeanShape<Traits> {
  using Shape = LeanShape<Traits>;
  using Epilogue = LeanEpilogue<Traits>;
  using typename Shape::Accumulator, typename Shape::Params, typename Shape::Barrier, typename Shape::Barriers,
      typename Shape::Place, typename Shape::Sums;
  using Shape::kTileM, Shape::kTileN, Shape::kTileK, Shape::kClusterM, Shape::kClusterN, Shape::kSplits,
      Shape::kClusterSize, Shape::kSwap, Shape::kSlabBytes, Shape::kSlabElements, Shape::kSlabs,
      Shape::kInstructionBytes, Shape::kBytesM, Shape::kBytesN, Shape::kStageBytes, Shape::kConsumers,
      Shape::kBlocksOfRows, Shape::kConsumerThreads, Shape::kStages, Shape::kDataBytes;

  struct Pipe {
    int stage = 0;
    uint32_t phase = 0;
    __device__ void advance() {
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
  };

  struct Range {
    int first, count;
  };
  __device__ static Range share(int k_tiles, int split) {
    int const each = k_tiles / kSplits, more = k_tiles % kSplits;
    return {split * each + (split < more ? split : more), each + (split < more ? 1 : 0)};
  }

  __device__ static void await_ahead() {
    if constexpr (Traits::kDependentLaunch) {
      await_prerequisites();
    }
  }

  /* One thread brings the operands in: its share of each, to all blocks that need it. */
  __device__ static void produce(Params const &params, Place const &place, uint8_t *data, Barriers &barriers) {
    Range const range = share(params.k_tiles, place.split);
    int const batch = blockIdx.z / kSplits;
    int const row_m = Shape::tile_m() * kTileM + place.n * (kTileM / kClusterN);
    int const row_n = Shape::tile_n() * kTileN + place.m * (kTileN / kClusterM);
    int const batch_m = batch * params.batched_m, batch_n = batch * params.batched_n;
    int const offset_m = place.n * (kTileM / kClusterN) * kSlabBytes;
    int const offset_n = place.m * (kTileN / kClusterM) * kSlabBytes;
    uint16_t const mask_m = place.mask_along_n(), mask_n = place.mask_along_m();

    auto load_m = [&](int i, int stage) {
      for (int slab = 0; slab < kSlabs; ++slab) {
        load<kClusterN>(params.map_m, params.hint_m, barriers.full[stage], mask_m,
                        data + stage * kStageBytes + slab * kBytesM + offset_m,
                        (range.first + i) * kTileK + slab * kSlabElements, row_m, batch_m);
      }
    };
    auto load_n = [&](int i, int stage) {
      for (int slab = 0; slab < kSlabs; ++slab) {
        load<kClusterM>(params.map_n, params.hint_n, barriers.full[stage], mask_n,
                        data + stage * kStageBytes + kSlabs * kBytesM + slab * kBytesN + offset_n,
                        (range.first + i) * kTileK + slab * kSlabElements, row_n, batch_n);
      }
    };
    /* Weights that no kernel ahead writes fill the free buffers while it still runs. */
    int const early = Traits::kConstantWeights ? min(range.count, kStages) : 0;
    for (int i = 0; i < early; ++i) {
      Barrier::arrive_and_expect_tx(&barriers.full[i], kStageBytes);
      kSwap ? load_m(i, i) : load_n(i, i);
    }
    await_ahead();
    for (int i = 0; i < early; ++i) {
      kSwap ? load_n(i, i) : load_m(i, i);
    }
    Pipe pipe;
    pipe.stage = early % kStages;
    pipe.phase = early == kStages;
    for (int i = early; i < range.count; ++i) {
      Barrier::wait(&barriers.empty[pipe.stage], pipe.phase ^ 1);
      Barrier::arrive_and_expect_tx(&barriers.full[pipe.stage], kStageBytes);
      load_m(i, pipe.stage);
      load_n(i, pipe.stage);
      pipe.advance();
    }
  }

  template <int kReceivers, class BarrierValue>
  __device__ static void load(CUtensorMap const &map, uint64_t hint, BarrierValue &full, uint16_t mask,
                              uint8_t *target, int k, int row, int batch) {
    if constexpr (kReceivers > 1) {
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, &full, mask, hint, target, k, row, batch);
    } else {
      cute::SM90_TMA_LOAD_3D::copy(&map, &full, hint, target, k, row, batch);
    }
  }

  __device__ static void consume(Params const &params, Place const &place, uint8_t *data, Barriers &barriers,
                                 Sums &sums) {
    int const warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    for (auto &block : sums) {
      for (Accumulator &sum : block) {
        sum = 0;
      }
    }
    /* A buffer is free again when all consumers have read it to whom its producers send: one thread
     * for each of these producers tells it. */
    constexpr int kSenders = kClusterM + kClusterN - 1;
    int const other_n = thread - kClusterM;
    int const sender = thread < kClusterM ? Place::rank(thread, place.n, place.split)
                                          : Place::rank(place.m, other_n + (other_n >= place.n), place.split);
    auto release = [&](int stage) { Barrier::arrive(&barriers.empty[stage], sender, thread < kSenders); };

    uint64_t const base_m =
        matrix_descriptor(cute::cast_smem_ptr_to_uint(data) + warpgroup * kBlocksOfRows * 64 * kSlabBytes);
    uint64_t const base_n = matrix_descriptor(cute::cast_smem_ptr_to_uint(data) + kSlabs * kBytesM);
    int const count = share(params.k_tiles, place.split).count;
    Pipe pipe;
    int before = 0;
    for (int i = 0; i < count; ++i) {
      Barrier::wait(&barriers.full[pipe.stage], pipe.phase);
      for (auto &block : sums) {
        for (Accumulator &sum : block) {
          pin(sum);
        }
      }
      wgmma_fence();
      uint64_t const at = pipe.stage * (kStageBytes >> 4);
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
        for (int step = 0; step < kSlabBytes / kInstructionBytes; ++step) {
          uint64_t const n_side = base_n + at + ((slab * kBytesN + step * kInstructionBytes) >> 4);
#pragma unroll
          for (int block = 0; block < kBlocksOfRows; ++block) {
            uint64_t const m_side =
                base_m + at + ((slab * kBytesM + block * 64 * kSlabBytes + step * kInstructionBytes) >> 4);
            Traits::multiply(m_side, n_side, sums[block]);
          }
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0) {
        release(before);
      }
      before = pipe.stage;
      pipe.advance();
    }
    wgmma_wait<0>();
    for (auto &block : sums) {
      for (Accumulator &sum : block) {
        pin(sum);
      }
    }
    if (count > 0) {
      release(before);
    }
  }

  __device__ static void run(Params const &params) {
    /* The swizzle's period is 1024 bytes. Dynamic shared memory begins at a multiple of it where a kernel
     * has no static one, as here: it would come first. */
    extern __shared__ __align__(1024) uint8_t data[];
    Barriers &barriers = *reinterpret_cast<Barriers *>(data + kDataBytes);
    Place const place;
    int const warp = threadIdx.x / 32;
    bool const producer = warp == kConsumerThreads / 32;

    if (threadIdx.x == kConsumerThreads) {
      cute::prefetch_tma_descriptor(&params.map_m);
      cute::prefetch_tma_descriptor(&params.map_n);
    }
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        Barrier::init(&barriers.full[i], 1);
        Barrier::init(&barriers.empty[i], kConsumers * (kClusterM + kClusterN - 1));
      }
      cutlass::arch::fence_barrier_init();
      if constexpr (Traits::kDependentLaunch) {
        release_dependents();
      }
    }
    if constexpr (kClusterSize > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }

    if (producer) {
      if (cute::elect_one_sync()) {
        produce(params, place, data, barriers);
      }
      __syncwarp();
      if constexpr (kClusterSize > 1) { /* arrivals match those of the consumers */
        cluster_sync();
      }
      if constexpr (kSplits > 1) {
        cluster_sync();
      }
      return;
    }

    await_ahead();
    auto *tile = reinterpret_cast<Accumulator *>(data);
    {
      Sums sums;
      consume(params, place, data, barriers, sums);
      sync_consumers<kConsumerThreads>(); /* nobody still reads the last buffers */
      Epilogue::stage(sums, tile);
    }
    if constexpr (kSplits > 1) {
      cluster_sync();
      Epilogue::finish(params, place, tile);
      cluster_sync(); /* nobody leaves whose sums are still read */
    } else {
      if constexpr (kClusterSize > 1) {
        cluster_arrive(); /* nobody leaves to whom a buffer may still be given back */
      }
      sync_consumers<kConsumerThreads>();
      Epilogue::finish(params, place, tile);
      if constexpr (kClusterSize > 1) {
        cluster_wait();
      }
    }
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) lean_gemm(__grid_constant__ typename Kernel::Params const params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  Kernel::run(params);
#endif
}

}  // namespace gemmsmith
