/* What a lean kernel is made of: sizes, how its shared memory is laid out, where a block stands. */
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/arch/barrier.h"
#include "gemmsmith/finish.h"

namespace gemmsmith {

template <class Traits>
struct LeanParams {
  CUtensorMap map_m, map_n; /* of the operands on the M and the N side */
  uint64_t hint_m, hint_n;  /* how L2 should keep them */
  int batched_m, batched_n; /* 0 where one matrix serves the whole batch */
  int tokens, features;     /* rows and columns of the product; a gate leaves half of these columns */
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
struct LeanShape {
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
  using Sums = Accumulator[kBlocksOfRows][kSums];

  /* The tile of D in shared memory, after the main loop and in its place: [tokens][features]. The
   * pitch spreads the fragments' rows over the banks. */
  static constexpr int kTokens = kSwap ? kTileN : kTileM;
  static constexpr int kFeatures = kSwap ? kTileM : kTileN;
  static constexpr int kPitch = kSwap ? kFeatures + 4 : kFeatures + (40 - kFeatures % 32) % 32;
  static constexpr int kTileBytes = kTokens * kPitch * 4;

  static constexpr int kBarrierBytes = 256;
  static constexpr int kMostShared = 232448 - kBarrierBytes; /* of a block */
  static constexpr int kMostStages = kMostShared / kStageBytes < 16 ? kMostShared / kStageBytes : 16;
  static constexpr int kStages = Traits::kStages ? Traits::kStages : kMostStages;
  static constexpr int kLoopBytes = kStages * kStageBytes;
  static constexpr int kDataBytes = kLoopBytes > kTileBytes ? kLoopBytes : kTileBytes;
  static constexpr int kSharedBytes = kDataBytes + kBarrierBytes;

  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  struct Barriers {
    Barrier::ValueType full[kStages], empty[kStages];
  };

  static_assert(kTileM % (64 * kConsumers) == 0 && kTileN % 8 == 0 && kTileN <= 256, "whole instructions");
  static_assert(kTileK % kSlabElements == 0, "whole slabs");
  static_assert(kClusterSize <= 8, "the largest cluster that every GPU of sm_90 takes");
  static_assert(kTileM % kClusterN == 0 && kTileN % kClusterM == 0, "a multicast has even shares");
  static_assert(kTileM / kClusterN <= 256 && kTileN / kClusterM <= 256, "a TMA box has at most 256 rows");
  static_assert(kStages >= 2 && kDataBytes <= kMostShared, "shared memory");
  static_assert(sizeof(Barriers) <= kBarrierBytes, "barriers");

  /* The grid runs along the tokens first, so that blocks which read the same weights run together: the
   * weights of a long prompt do not fit in L2, its tokens do. Tokens are M, with kSwap N. */
  static constexpr int kClusterX = kSwap ? kClusterN : kClusterM, kClusterY = kSwap ? kClusterM : kClusterN;
  __device__ static int tile_m() { return int(kSwap ? blockIdx.y : blockIdx.x); }
  __device__ static int tile_n() { return int(kSwap ? blockIdx.x : blockIdx.y); }

  /* Where this block stands: along M and N of its cluster, and its share of K. */
  struct Place {
    int m, n, split;
    __device__ Place() {
      int rank = kClusterSize > 1 ? int(cute::block_rank_in_cluster()) : 0;
      int const x = rank % kClusterX, y = rank / kClusterX % kClusterY;
      m = kSwap ? y : x;
      n = kSwap ? x : y;
      split = rank / (kClusterX * kClusterY);
    }
    __device__ static int rank(int m, int n, int split) {
      int const x = kSwap ? n : m, y = kSwap ? m : n;
      return x + kClusterX * (y + kClusterY * split);
    }
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
};

}  // namespace gemmsmith
