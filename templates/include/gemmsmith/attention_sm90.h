/* Attention of many queries on Hopper's wgmma and TMA.
 *
 * A block stays and takes one tile of queries of one head after the other. A producer warp brings them,
 * and tiles of keys and values, into rings of buffers; each of the other warpgroups has 64 queries, keeps
 * their scores, probabilities and sums in registers, and multiplies the scores of one tile of keys while
 * it still multiplies the probabilities of the tile before. Its softmax runs beside the latter product;
 * with kInTurns the warpgroups pass the right to start products on, so that one's softmax runs beside the
 * other's products.
 *
 * Keys are taken from the last that a tile of queries sees to the first; those that none of them sees are
 * not loaded. Sums are divided once, at the end. Columns between the call's head_dim and kHead are zeros
 * that TMA fills in, and are neither multiplied beyond the next 16 nor stored.
 */
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/reg_reconfig.h"
#include "gemmsmith/attention_schedule.h"
#include "gemmsmith/attention_softmax.h"
#include "gemmsmith/dependent_launch.h"
#include "gemmsmith/hopper_instructions.h"

namespace gemmsmith {

struct AttentionParams {
  CUtensorMap map_q, map_k, map_v;
  AttentionWork work;
  void *out;
  int64_t out_batch, out_row, out_head;
  float scale; /* of the scores, in base 2 where there is no cap */
  float cap;   /* 0: none */
};

template <class Traits>
struct Attention {
  using Element = typename Traits::Element;
  using Params = AttentionParams;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kHead = Traits::kHead;
  static constexpr int kTileQueries = Traits::kTileQueries;
  static constexpr int kTileKeys = Traits::kTileKeys;
  static constexpr int kStages = Traits::kStages;

  static constexpr int kWarpgroups = kTileQueries / 64; /* that multiply */
  static constexpr int kConsumerThreads = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumerThreads + 128;
  /* setmaxnreg: the registers of a block, shared out anew. */
  static constexpr int kProducerRegisters = kWarpgroups == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kWarpgroups == 3 ? 160 : 240;

  static constexpr int kSlabBytes = 128; /* of a row: the widest swizzle */
  static constexpr int kSlabElements = kSlabBytes / int(sizeof(Element));
  static constexpr int kSlabs = (kHead + kSlabElements - 1) / kSlabElements;
  static constexpr int kQueryBytes = kSlabs * kTileQueries * kSlabBytes;
  static constexpr int kKeyBytes = kSlabs * kTileKeys * kSlabBytes; /* of values, too */
  static constexpr int kDataBytes = kQueryBytes + 2 * kStages * kKeyBytes;
  static constexpr int kSteps = (kHead + 15) / 16; /* of an instruction along the head */
  static constexpr int kScores = kTileKeys / 2;    /* registers of a thread */
  static constexpr int kSums = kHead / 2;
  static constexpr int kProbabilities = kTileKeys / 4;

  struct Barriers {
    uint64_t full_q, empty_q;
    uint64_t full_k[kStages], empty_k[kStages], full_v[kStages], empty_v[kStages];
  };
  static constexpr int kSharedBytes = kDataBytes + int(sizeof(Barriers));

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

  __device__ static void await_ahead() {
    if constexpr (Traits::kDependentLaunch) {
      await_prerequisites();
    }
  }

  /* One thread brings the operands in. */
  __device__ static void produce(Params const &params, uint8_t *data, Barriers &barriers) {
    uint8_t *const keys = data + kQueryBytes, *const values = keys + kStages * kKeyBytes;
    Pipe pipe_k, pipe_v;
    uint32_t phase_q = 1;
    auto load = [&](CUtensorMap const &map, uint64_t &full, uint64_t &empty, uint32_t phase, uint8_t *target, int rows,
                    int row, int head, int batch, auto hint) {
      Barrier::wait(&empty, phase);
      Barrier::arrive_and_expect_tx(&full, kSlabs * rows * kSlabBytes);
      for (int slab = 0; slab < kSlabs; ++slab) {
        cute::SM90_TMA_LOAD_4D::copy(&map, &full, static_cast<uint64_t>(hint), target + slab * rows * kSlabBytes,
                                     slab * kSlabElements, row, head, batch);
      }
    };
    for (int round = 0, index; (index = params.work.tile(round)) >= 0; ++round) {
      QueryTile const tile = params.work.template locate<kTileQueries, kTileKeys>(index);
      if (tile.first_block >= tile.end_block) {
        continue;
      }
      load(params.map_q, barriers.full_q, barriers.empty_q, phase_q, data, kTileQueries, tile.q_row, tile.head,
           tile.q_batch, cute::TMA::CacheHintSm90::EVICT_FIRST);
      phase_q ^= 1;
      auto load_k = [&](int block) {
        load(params.map_k, barriers.full_k[pipe_k.stage], barriers.empty_k[pipe_k.stage], pipe_k.phase ^ 1,
             keys + pipe_k.stage * kKeyBytes, kTileKeys, tile.k_row + block * kTileKeys, tile.kv_head, tile.k_batch,
             cute::TMA::CacheHintSm90::EVICT_LAST);
        pipe_k.advance();
      };
      auto load_v = [&](int block) {
        load(params.map_v, barriers.full_v[pipe_v.stage], barriers.empty_v[pipe_v.stage], pipe_v.phase ^ 1,
             values + pipe_v.stage * kKeyBytes, kTileKeys, tile.k_row + block * kTileKeys, tile.kv_head, tile.k_batch,
             cute::TMA::CacheHintSm90::EVICT_LAST);
        pipe_v.advance();
      };
      load_k(tile.end_block - 1);
      for (int block = tile.end_block - 1; block > tile.first_block; --block) {
        load_k(block - 1);
        load_v(block);
      }
      load_v(tile.first_block);
    }
  }

  /* The turns of the warpgroups: a hardware barrier each, which the one before arrives at. */
  __device__ static void await_turn(int warpgroup) {
    if constexpr (Traits::kInTurns && kWarpgroups > 1) {
      asm volatile("bar.sync %0, 256;" ::"r"(1 + warpgroup) : "memory");
    }
  }
  __device__ static void pass_turn(int warpgroup) {
    if constexpr (Traits::kInTurns && kWarpgroups > 1) {
      asm volatile("bar.arrive %0, 256;" ::"r"(warpgroup == kWarpgroups - 1 ? 1 : 2 + warpgroup) : "memory");
    }
  }

  /* Values that follow a sequence's last one in its last tile are another's, or NaN: a probability of 0
   * does not cancel them. Each warpgroup writes the zeros that it is going to read. */
  __device__ static void clear_values(uint8_t *values, int first_row, int warpgroup) {
    int const rows = kTileKeys - first_row, chunks = kSlabBytes / 16;
    for (int i = threadIdx.x % 128; i < rows * chunks * kSlabs; i += 128) {
      int const slab = i / (rows * chunks), rest = i % (rows * chunks);
      auto *const row = values + (slab * kTileKeys + first_row + rest / chunks) * kSlabBytes;
      *reinterpret_cast<uint4 *>(row + rest % chunks * 16) = uint4{0, 0, 0, 0};
    }
    cutlass::arch::fence_view_async_shared();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + kWarpgroups + warpgroup) : "memory");
  }

  __device__ static void consume(Params const &params, uint8_t *data, Barriers &barriers) {
    int const warpgroup = threadIdx.x / 128;
    uint64_t const queries =
        matrix_descriptor(cute::cast_smem_ptr_to_uint(data) + warpgroup * 64 * kSlabBytes);
    uint8_t *const values_data = data + kQueryBytes + kStages * kKeyBytes;
    uint64_t const keys = matrix_descriptor(cute::cast_smem_ptr_to_uint(data + kQueryBytes));
    uint64_t const values = columns_descriptor(cute::cast_smem_ptr_to_uint(values_data), kTileKeys * kSlabBytes);
    auto release = [](uint64_t &barrier) { Barrier::arrive(&barrier, 0, threadIdx.x % 128 == 0); };
    Pipe pipe_k, pipe_v;
    uint32_t phase_q = 0;

    if (warpgroup == kWarpgroups - 1) {
      pass_turn(warpgroup); /* the first one begins */
    }
    for (int round = 0, index; (index = params.work.tile(round)) >= 0; ++round) {
      QueryTile const tile = params.work.template locate<kTileQueries, kTileKeys>(index);
      Rows const rows(params.work, tile, warpgroup);
      if (tile.rows <= 0) {
        continue;
      }
      float sums[kSums];
      float total[2] = {0.0f, 0.0f};
      if (tile.first_block >= tile.end_block) {
#pragma unroll
        for (float &sum : sums) {
          sum = 0.0f;
        }
        store(params, tile, rows, sums, total);
        continue;
      }
      float largest[2] = {-INFINITY, -INFINITY};
      uint32_t probabilities[kProbabilities];
      int block = tile.end_block - 1;

      auto multiply_keys = [&](float (&scores)[kScores]) {
        Barrier::wait(&barriers.full_k[pipe_k.stage], pipe_k.phase);
        await_turn(warpgroup);
        pin_all(scores);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          int const slab = step / 4, inside = step % 4 * 32; /* bytes: 16 elements */
          uint64_t const q = queries + ((slab * kTileQueries * kSlabBytes + inside) >> 4);
          uint64_t const k =
              keys + pipe_k.stage * (kKeyBytes >> 4) + ((slab * kTileKeys * kSlabBytes + inside) >> 4);
          Traits::multiply_keys(q, k, scores, step > 0);
        }
        wgmma_commit();
      };
      auto multiply_values = [&](bool add) {
        Barrier::wait(&barriers.full_v[pipe_v.stage], pipe_v.phase);
        pin_all(sums);
        pin_all(probabilities);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTileKeys / 16; ++step) {
          uint64_t const v = values + pipe_v.stage * (kKeyBytes >> 4) + ((step * 16 * kSlabBytes) >> 4);
          Traits::multiply_values(probabilities[4 * step], probabilities[4 * step + 1], probabilities[4 * step + 2],
                                  probabilities[4 * step + 3], v, sums, add || step > 0);
        }
        wgmma_commit();
      };
      auto done_with_keys = [&] {
        release(barriers.empty_k[pipe_k.stage]);
        pipe_k.advance();
      };
      auto done_with_values = [&] {
        release(barriers.empty_v[pipe_v.stage]);
        pipe_v.advance();
      };

      Barrier::wait(&barriers.full_q, phase_q);
      phase_q ^= 1;
      {
        float scores[kScores];
        float kept[2];
        multiply_keys(scores);
        pass_turn(warpgroup);
        wgmma_wait<0>();
        pin_all(scores);
        done_with_keys();
        cap_and_mask<kTileKeys>(scores, params.scale, params.cap, rows, block);
        soften<kScores>(scores, params.cap > 0.0f ? kLog2e : params.scale, largest, total, kept);
        pack<Element, kScores>(scores, probabilities);
      }
      if (tile.dirty && (block + 1) * kTileKeys > tile.keys) {
        Barrier::wait(&barriers.full_v[pipe_v.stage], pipe_v.phase);
        clear_values(values_data + pipe_v.stage * kKeyBytes, max(0, tile.keys - block * kTileKeys), warpgroup);
      }
      bool add = false;
      while (--block >= tile.first_block) {
        float scores[kScores];
        float kept[2];
        multiply_keys(scores);
        multiply_values(add);
        pass_turn(warpgroup);
        add = true;
        wgmma_wait<1>();
        pin_all(scores);
        done_with_keys();
        cap_and_mask<kTileKeys>(scores, params.scale, params.cap, rows, block);
        soften<kScores>(scores, params.cap > 0.0f ? kLog2e : params.scale, largest, total, kept);
        wgmma_wait<0>();
        pin_all(sums);
        pin_all(probabilities);
        done_with_values();
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          sums[i] *= kept[i / 2 % 2];
        }
        pack<Element, kScores>(scores, probabilities);
      }
      release(barriers.empty_q);
      multiply_values(add);
      wgmma_wait<0>();
      pin_all(sums);
      done_with_values();
      store(params, tile, rows, sums, total);
    }
  }

  /* Divides the sums by the probabilities' total and writes them, 16 bytes a thread: the four threads of
   * a row exchange pairs of columns for eight of them. */
  __device__ static void store(Params const &params, QueryTile const &tile, Rows const &rows, float const (&sums)[kSums],
                               float (&total)[2]) {
    constexpr int kGroups = kHead / 8; /* of columns */
    int const quad = threadIdx.x % 4;
    auto *const out = static_cast<Element *>(params.out) + tile.out_batch * params.out_batch + tile.head * params.out_head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const sum = add_in_quad(total[half]);
      float const factor = sum > 0.0f ? 1.0f / sum : (sum == 0.0f ? 0.0f : sum);
      int const row = rows.row + 8 * half;
      auto *const line = out + (tile.out_row + row) * params.out_row;
#pragma unroll
      for (int group = 0; group < kGroups; group += 4) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int const at = 4 * (group + i) + 2 * half;
          pairs[i] = group + i < kGroups ? pack_pair<Element>(sums[at] * factor, sums[at + 1] * factor) : 0u;
        }
        uint4 const columns = transpose_in_quad(pairs);
        int const mine = group + quad;
        if (row < tile.rows && mine < kGroups && 8 * mine < params.work.head_dim) {
          *reinterpret_cast<uint4 *>(line + 8 * mine) = columns;
        }
      }
    }
  }

  __device__ static void run(Params const &params) {
    /* The swizzle's period is 1024 bytes; dynamic shared memory begins at a multiple of it. */
    extern __shared__ __align__(1024) uint8_t data[];
    Barriers &barriers = *reinterpret_cast<Barriers *>(data + kDataBytes);
    if (threadIdx.x == kConsumerThreads) {
      cute::prefetch_tma_descriptor(&params.map_q);
      cute::prefetch_tma_descriptor(&params.map_k);
      cute::prefetch_tma_descriptor(&params.map_v);
    }
    if (threadIdx.x == 0) {
      Barrier::init(&barriers.full_q, 1);
      Barrier::init(&barriers.empty_q, kWarpgroups);
      for (int i = 0; i < kStages; ++i) {
        Barrier::init(&barriers.full_k[i], 1);
        Barrier::init(&barriers.empty_k[i], kWarpgroups);
        Barrier::init(&barriers.full_v[i], 1);
        Barrier::init(&barriers.empty_v[i], kWarpgroups);
      }
      cutlass::arch::fence_barrier_init();
      if constexpr (Traits::kDependentLaunch) {
        release_dependents();
      }
    }
    __syncthreads();
    if (threadIdx.x >= kConsumerThreads) {
      if constexpr (kWarpgroups > 1) {
        cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      }
      if (threadIdx.x / 32 == kConsumerThreads / 32 && cute::elect_one_sync()) {
        await_ahead();
        produce(params, data, barriers);
      }
    } else {
      if constexpr (kWarpgroups > 1) {
        cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      }
      await_ahead();
      consume(params, data, barriers);
    }
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) attention(__grid_constant__ typename Kernel::Params const params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  Kernel::run(params);
#endif
}

}  // namespace gemmsmith
