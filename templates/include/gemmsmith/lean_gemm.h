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
#include "cutlass/numeric_conversion.h"
#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/finish.h"
#include "gemmsmith/hopper_instructions.h"

namespace gemmsmith {

template <class Traits>
struct LeanParams {
  CUtensorMap map_m, map_n; /* of the operands on the M and the N side */
  uint64_t hint_m, hint_n;  /* how L2 should keep them */
  int batched_m, batched_n; /* 0 where one matrix serves the whole batch */
  int tokens, features;     /* rows and columns of D */
  int k_tiles;
  typename Traits::ElementD *d;
  typename Traits::ElementD const *c;
  typename Traits::ElementBias const *bias;
  float const *a_scale, *b_scale;
  int64_t ldc, ldd, c_batch, d_batch;
  float beta;
  FinishArguments finish;
};

template <class Traits>
struct LeanGemm {
  using Element = typename Traits::ElementA;
  using Accumulator = typename Traits::ElementAccumulator;
  using ElementD = typename Traits::ElementD;
  using Params = LeanParams<Traits>;

  static constexpr int kTileM = Traits::kDeviceTileM, kTileN = Traits::kDeviceTileN, kTileK = Traits::kTileK;
  static constexpr int kClusterM = Traits::kDeviceClusterM, kClusterN = Traits::kDeviceClusterN;
  static constexpr int kSplits = Traits::kSplits;
  static constexpr int kClusterSize = kClusterM * kClusterN * kSplits;
  static constexpr bool kSwap = Traits::kSwap;

  /* Operands lie in slabs: rows of 128 bytes, the widest swizzle. */
  static constexpr int kSlabBytes = 128;
  static constexpr int kSlabElements = kSlabBytes / int(sizeof(Element));
  static constexpr int kSlabs = kTileK / kSlabElements;
  static constexpr int kInstructionBytes = 32; /* along K, of every element type */
  static constexpr int kBytesM = kTileM * kSlabBytes, kBytesN = kTileN * kSlabBytes;
  static constexpr int kStageBytes = kSlabs * (kBytesM + kBytesN);

  static constexpr int kConsumers = kTileM % 128 == 0 ? 2 : kTileM / 64; /* warpgroups */
  static constexpr int kBlocksOfRows = kTileM / (64 * kConsumers);       /* 64-row blocks of each */
  static constexpr int kConsumerThreads = 128 * kConsumers;
  static constexpr int kThreads = kConsumerThreads + 32;
  static constexpr int kSums = kTileN / 2; /* of a thread, in each block of rows */

  /* The tile of D in shared memory, after the main loop and in its place: [tokens][features]. The
   * pitch spreads the fragments' rows over the banks. */
  static constexpr int kTokens = kSwap ? kTileN : kTileM;
  static constexpr int kFeatures = kSwap ? kTileM : kTileN;
  static constexpr int kPitch = kSwap ? kFeatures + 4 : kFeatures + (40 - kFeatures % 32) % 32;
  static constexpr int kQuads = kTokens * kFeatures / 4;
  static constexpr int kQuadsPerBlock = (kQuads + kSplits - 1) / kSplits;
  static constexpr int kTileBytes = kTokens * kPitch * 4;

  static constexpr int kBarrierBytes = 256;
  static constexpr int kMostShared = 232448 - kBarrierBytes; /* of a block */
  static constexpr int kMostStages = kMostShared / kStageBytes < 16 ? kMostShared / kStageBytes : 16;
  static constexpr int kStages = Traits::kStages ? Traits::kStages : kMostStages;
  static constexpr int kLoopBytes = kStages * kStageBytes;
  static constexpr int kDataBytes = kLoopBytes > kTileBytes ? kLoopBytes : kTileBytes;
  static constexpr int kSharedBytes = kDataBytes + kBarrierBytes;

  struct Barriers {
    cutlass::arch::ClusterTransactionBarrier::ValueType full[kStages], empty[kStages];
  };

  static_assert(kTileM % (64 * kConsumers) == 0 && kTileN % 8 == 0 && kTileN <= 256, "whole instructions");
  static_assert(kTileK % kSlabElements == 0, "whole slabs");
  static_assert(kClusterSize <= 8, "the largest cluster that every GPU of sm_90 takes");
  static_assert(kTileM % kClusterN == 0 && kTileN % kClusterM == 0, "a multicast has even shares");
  static_assert(kTileM / kClusterN <= 256 && kTileN / kClusterM <= 256, "a TMA box has at most 256 rows");
  static_assert(kStages >= 2 && kDataBytes <= kMostShared, "shared memory");
  static_assert(sizeof(Barriers) <= kBarrierBytes, "barriers");

  using Barrier = cutlass::arch::ClusterTransactionBarrier;

  /* Where this block stands: along M and N of its cluster, and its share of K. */
  struct Place {
    int m, n, split;
    __device__ Place() {
      int rank = kClusterSize > 1 ? int(cute::block_rank_in_cluster()) : 0;
      m = rank % kClusterM;
      n = rank / kClusterM % kClusterN;
      split = rank / (kClusterM * kClusterN);
    }
    __device__ static int rank(int m, int n, int split) { return m + kClusterM * (n + kClusterN * split); }
    __device__ uint16_t mask_along_n() const {
      uint32_t mask = 0;
      for (int other = 0; other < kClusterN; ++other) {
        mask |= 1u << rank(m, other, split);
      }
      return uint16_t(mask);
    }
    __device__ uint16_t mask_along_m() const {
      uint32_t mask = 0;
      for (int other = 0; other < kClusterM; ++other) {
        mask |= 1u << rank(other, n, split);
      }
      return uint16_t(mask);
    }
  };

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
    int const row_m = blockIdx.x * kTileM + place.n * (kTileM / kClusterN);
    int const row_n = blockIdx.y * kTileN + place.m * (kTileN / kClusterM);
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

  using Sums = Accumulator[kBlocksOfRows][kSums];

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

  /* Puts the sums of this block into its shared memory, in the order of D. */
  __device__ static void stage(Sums const &sums, Accumulator *tile) {
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int const first_row = (warp / 4) * kBlocksOfRows * 64 + (warp % 4) * 16 + lane / 4;
    int const first_column = 2 * (lane % 4);
#pragma unroll
    for (int block = 0; block < kBlocksOfRows; ++block) {
#pragma unroll
      for (int i = 0; i < kSums; i += 2) {
        int const row = first_row + block * 64 + 8 * (i / 2 % 2);
        int const column = first_column + 8 * (i / 4);
        if constexpr (kSwap) {
          tile[column * kPitch + row] = sums[block][i];
          tile[(column + 1) * kPitch + row] = sums[block][i + 1];
        } else {
          struct alignas(8) Pair {
            Accumulator left, right;
          };
          *reinterpret_cast<Pair *>(tile + row * kPitch + column) = {sums[block][i], sums[block][i + 1]};
        }
      }
    }
  }

  /* Finishes this block's share of the tile: four neighbours of a row at a time. */
  __device__ static void finish(Params const &params, Place const &place, Accumulator *tile) {
    using Floats = cutlass::Array<float, 4>;
    using Function = Finish<Traits::kActivation, Traits::kScaled, Traits::kBias, cute::is_same_v<ElementD, int8_t>, Floats>;
    int const token_0 = (kSwap ? blockIdx.y : blockIdx.x) * kTokens;
    int const feature_0 = (kSwap ? blockIdx.x : blockIdx.y) * kFeatures;
    int64_t const batch = blockIdx.z / kSplits;
    uint32_t parts[kSplits];
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {
      uint32_t const own = cute::cast_smem_ptr_to_uint(tile);
      parts[split] = kSplits > 1 ? cute::set_block_rank(own, Place::rank(place.m, place.n, split)) : own;
    }
    /* All that a batch reads is under way before the first of it is used. */
    using Output = cutlass::AlignedArray<ElementD, 4>;
    constexpr int kRounds = (kQuadsPerBlock + kConsumerThreads - 1) / kConsumerThreads;
    constexpr int kMost = kSplits == 1 ? 8 : 4;
    constexpr int kBatch = kRounds < kMost ? kRounds : kMost;
    int const end = min((place.split + 1) * kQuadsPerBlock, kQuads);
    int quad = place.split * kQuadsPerBlock + int(threadIdx.x);
    for (int round = 0; round < kRounds; round += kBatch) {
      Quad<Accumulator> sums[kBatch][kSplits];
      Output sources[kBatch];
      int tokens[kBatch], features[kBatch];
      bool inside[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i, quad += kConsumerThreads) {
        int const row = quad / (kFeatures / 4), column = quad % (kFeatures / 4) * 4;
        tokens[i] = token_0 + row;
        features[i] = feature_0 + column;
        inside[i] = quad < end && tokens[i] < params.tokens && features[i] < params.features;
        if (inside[i]) {
          int const at = row * kPitch + column;
          if constexpr (kSplits > 1) {
#pragma unroll
            for (int split = 0; split < kSplits; ++split) {
              sums[i][split] = load_of_cluster<Accumulator>(parts[split] + at * 4);
            }
          } else {
            sums[i][0] = *reinterpret_cast<Quad<Accumulator> *>(tile + at);
          }
          if constexpr (Traits::kResidual) {
            if (params.c != nullptr) {
              sources[i] = *reinterpret_cast<Output const *>(params.c + batch * params.c_batch +
                                                             tokens[i] * params.ldc + features[i]);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (inside[i]) {
          Floats values, bias, a_scale, b_scale;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            Accumulator sum = sums[i][0].values[j];
#pragma unroll
            for (int split = 1; split < kSplits; ++split) {
              sum += sums[i][split].values[j];
            }
            values[j] = float(sum);
            bias[j] = Traits::kBias && params.bias ? float(params.bias[features[i] + j]) : 0.0f;
            a_scale[j] = Traits::kScaled && params.a_scale ? params.a_scale[tokens[i]] : 1.0f;
            b_scale[j] = Traits::kScaled && params.b_scale ? params.b_scale[features[i] + j] : 1.0f;
          }
          Function const function;
          if constexpr (Traits::kScaled && Traits::kBias) {
            values = function(values, a_scale, b_scale, bias, params.finish);
          } else if constexpr (Traits::kScaled) {
            values = function(values, a_scale, b_scale, params.finish);
          } else if constexpr (Traits::kBias) {
            values = function(values, bias, params.finish);
          } else {
            values = function(values, params.finish);
          }
          if constexpr (Traits::kResidual) {
            if (params.c != nullptr) {
              for (int j = 0; j < 4; ++j) {
                values[j] += params.beta * float(sources[i][j]);
              }
            }
          }
          auto const rounded = cutlass::NumericArrayConverter<ElementD, float, 4>{}(values);
          Output output;
          for (int j = 0; j < 4; ++j) {
            output[j] = rounded[j];
          }
          *reinterpret_cast<Output *>(params.d + batch * params.d_batch + tokens[i] * params.ldd + features[i]) = output;
        }
      }
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
      stage(sums, tile);
    }
    if constexpr (kSplits > 1) {
      cluster_sync();
      finish(params, place, tile);
      cluster_sync(); /* nobody leaves whose sums are still read */
    } else {
      if constexpr (kClusterSize > 1) {
        cluster_arrive(); /* nobody leaves to whom a buffer may still be given back */
      }
      sync_consumers<kConsumerThreads>();
      finish(params, place, tile);
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
