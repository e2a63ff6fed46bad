/* Attention of many queries on mma.sync, Volta to Ada, from the kernel of CUTLASS's example 41.
 *
 * A block has one tile of queries of one head. What is ours is where its operands lie (strides, groups of
 * heads, lengths, packed sequences), the order of the blocks, and the queries that see no key: CUTLASS's
 * kernel would divide their sum, 0, by 0. They are the first of their sequence, so that the tile begins
 * behind them, and whoever has them writes zeros.
 */
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "41_fused_multi_head_attention/kernel_forward.h"
#include "gemmsmith/attention_schedule.h"

namespace gemmsmith {

struct MmaSyncParams {
  AttentionWork work;
  void const *q, *k, *v;
  void *out;
  float *sums; /* of tiles whose head is wider than a block's registers; else not used */
  int64_t q_batch, q_head, k_batch, k_head, v_batch, v_head, out_batch, out_head;
  int32_t q_row, k_row, v_row, out_row;
  int32_t tokens_q; /* rows of q where sequences are packed */
  float scale;
};

template <class Traits>
struct MmaSyncAttention {
  using Element = typename Traits::Element;
  using Params = MmaSyncParams;
  static constexpr int kHead = Traits::kHead;
  static constexpr int kTileQueries = Traits::kTileQueries;
  static constexpr int kTileKeys = Traits::kTileKeys;
  /* Operands begin at multiples of 16 bytes; no dropout, no bias. */
  using Base = AttentionKernel<Element, typename Traits::Arch, true, kTileQueries, kTileKeys, kHead, false, false>;
  static constexpr bool kNeedsSums = Base::kNeedsOutputAccumulatorBuffer;
  static constexpr int kThreads = Base::kNumThreads;
  static constexpr int kMinBlocks = Base::kMinBlocksPerSm > 0 ? Base::kMinBlocksPerSm : 1;
  static constexpr int kSharedBytes = int(sizeof(typename Base::SharedStorage));
  static_assert(Traits::kStages == (Traits::Arch::kMinComputeCapability >= 80 ? 4 : 2),
                "CUTLASS's kernel has 4 buffers where it copies in the background, else 2");

  __device__ static void write_zeros(Element *rows, int count, int64_t step, int head_dim) {
    constexpr int kVector = 16 / int(sizeof(Element));
    int const chunks = head_dim / kVector;
    for (int i = threadIdx.y * 32 + threadIdx.x; i < count * chunks; i += kThreads) {
      *reinterpret_cast<uint4 *>(rows + i / chunks * step + i % chunks * kVector) = uint4{0, 0, 0, 0};
    }
  }

  /* Rows of packed queries that belong to no sequence: the blocks share them. */
  __device__ static void write_rest(Params const &params) {
    AttentionWork const &work = params.work;
    for (int64_t row = work.cu_q[work.batch] + int64_t(blockIdx.x); row < params.tokens_q; row += gridDim.x) {
      write_zeros(static_cast<Element *>(params.out) + row * params.out_row, work.heads, params.out_head, work.head_dim);
    }
  }

  __device__ static void run(Params const &params) {
    AttentionWork const &work = params.work;
    if (work.cu_q != nullptr) {
      write_rest(params);
    }
    QueryTile const tile = work.template locate<kTileQueries, kTileKeys>(int(blockIdx.x));
    if (tile.rows <= 0) {
      return;
    }
    int blind = work.causal ? min(tile.rows, max(0, -tile.shift)) : 0;
    if (tile.keys <= 0) {
      blind = tile.rows;
    }
    auto *const out = static_cast<Element *>(params.out) + tile.out_batch * params.out_batch +
                      tile.head * params.out_head + tile.out_row * params.out_row;
    write_zeros(out, blind, params.out_row, work.head_dim);
    if (blind == tile.rows) {
      return;
    }
    using gemm_kernel_utils::warp_uniform;
    int const shift = tile.shift + blind, rows = tile.rows - blind;
    /* CUTLASS's types have no const; the kernel reads q, k and v alone. */
    auto *const q = static_cast<Element *>(const_cast<void *>(params.q));
    auto *const k = static_cast<Element *>(const_cast<void *>(params.k));
    auto *const v = static_cast<Element *>(const_cast<void *>(params.v));
    typename Base::Params p;
    p.query_ptr = warp_uniform(q + tile.q_batch * params.q_batch + tile.head * params.q_head +
                               int64_t(tile.q_row + blind) * params.q_row);
    p.key_ptr = warp_uniform(k + tile.k_batch * params.k_batch + tile.kv_head * params.k_head +
                             int64_t(tile.k_row) * params.k_row);
    p.value_ptr = warp_uniform(v + tile.k_batch * params.v_batch + tile.kv_head * params.v_head +
                               int64_t(tile.k_row) * params.v_row);
    p.output_ptr = warp_uniform(out + int64_t(blind) * params.out_row);
    if constexpr (kNeedsSums) {
      int64_t const row = tile.out_batch * work.queries + tile.out_row + blind;
      p.output_accum_ptr = warp_uniform(params.sums + (row * work.heads + tile.head) * work.head_dim);
    }
    p.q_strideM = params.q_row;
    p.k_strideM = params.k_row;
    p.v_strideM = params.v_row;
    p.o_strideM = params.out_row;
    p.num_heads = work.heads;
    p.head_dim = p.head_dim_value = work.head_dim;
    p.scale = params.scale;
    p.num_queries = warp_uniform(rows);
    p.num_keys = warp_uniform(work.causal ? min(tile.keys, shift + rows) : tile.keys);
    p.custom_mask_type = work.causal ? Base::CausalFromBottomRight : Base::NoCustomMask;
    /* The kernel adds the first query that this block would have without an order of ours; modulo 2^32
     * the sum is the last key of the tile's first query. */
    p.causal_diagonal_offset = warp_uniform(uint32_t(shift) - blockIdx.x * uint32_t(kTileQueries));
    Base::attention_kernel(p);
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks) attention_mma_sync(typename Kernel::Params const params) {
  Kernel::run(params);
}

}  // namespace gemmsmith
