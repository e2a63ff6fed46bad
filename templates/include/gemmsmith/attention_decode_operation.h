/* Starts attention_decode.h's kernels: what a call must be like, and into how many parts its keys go. */
#pragma once

#include <cuda_runtime.h>

#include "gemmsmith/attention_abi.h"
#include "gemmsmith/attention_decode.h"

namespace gemmsmith {

/* Why a kernel does not take a call; its explain() words them. */
enum DecodeStatus : gemmsmith_status {
  kDecodeRuns = 0,
  kDecodeSizes = 1,
  kDecodeAlignment = 2,
  kDecodeHeadDim = 3,
  kDecodePageSize = 4,
  kDecodePacked = 5,
  kDecodeMemory = 6,
  kDecodeAppend = 7,
};

inline const char *explain_decode(gemmsmith_status status) {
  switch (status) {
    case kDecodeRuns:
      return "success";
    case kDecodeSizes:
      return "a size, window, softcap or number of splits is out of range";
    case kDecodeAlignment:
      return "addresses and strides of k and v must be multiples of 16 bytes, of the result of 8, of q of 4";
    case kDecodeHeadDim:
      return "head_dim must be a multiple of 8, no larger than the kernel's";
    case kDecodePageSize:
      return "the page size must be a power of two";
    case kDecodePacked:
      return "packed sequences are not taken";
    case kDecodeMemory:
      return "workspace or counters are missing";
    case kDecodeAppend:
      return "a key is appended to a sequence of known length, with one query, all at multiples of 16 bytes; pairs are "
             "multiples of 8 where they are halves, of 4 where neighbours";
    default:
      return status < 0 ? cudaGetErrorString(static_cast<cudaError_t>(-status)) : "unknown status";
  }
}

template <class Traits>
struct DecodeOperation {
  using Kernel = DecodeAttention<Traits>;
  static constexpr int kCluster = Traits::kCluster;

  static int64_t row_groups(gemmsmith_attention const &call) {
    return (call.heads / call.kv_heads * call.queries + Kernel::kRows - 1) / Kernel::kRows;
  }
  /* Rows of the grid, which share nothing. */
  static int64_t groups(gemmsmith_attention const &call) { return call.batch * call.kv_heads * row_groups(call); }

  static gemmsmith_status can_run(gemmsmith_attention const *given) {
    gemmsmith_attention const &call = *given;
    constexpr int64_t kMost = 1 << 30;
    bool const counts = call.batch >= 0 && call.batch <= 65535 && call.kv_heads > 0 && call.heads > 0 &&
                        call.heads % call.kv_heads == 0 && call.queries > 0 && call.keys >= 0 && call.keys <= kMost &&
                        call.heads * call.queries <= kMost && call.kv_heads * row_groups(call) <= 65535;
    if (!counts || call.splits < 0 || call.window < 0 || !(call.softcap >= 0.0f)) {
      return kDecodeSizes;
    }
    if (call.cu_q != nullptr || call.cu_k != nullptr) {
      return kDecodePacked;
    }
    if (call.head_dim <= 0 || call.head_dim > Kernel::kHeadDim || call.head_dim % 8 != 0) {
      return kDecodeHeadDim;
    }
    bool const paged = call.block_table != nullptr;
    if (paged && (call.page_size <= 0 || (call.page_size & (call.page_size - 1)) != 0)) {
      return kDecodePageSize;
    }
    /* A dimension of one is not stepped. */
    auto const stepped = [](int64_t unit, int64_t count, int64_t stride) { return count <= 1 || stride % unit == 0; };
    auto const placed = [](int64_t unit, void const *address) {
      return reinterpret_cast<uintptr_t>(address) % (2 * unit) == 0;
    };
    int64_t const stores = paged ? call.pages : call.batch, rows = paged ? call.page_size : call.keys;
    bool const aligned =
        placed(2, call.q) && placed(8, call.k) && placed(8, call.v) && placed(4, call.out) &&
        stepped(2, call.batch, call.q_batch) && stepped(2, call.queries, call.q_row) &&
        stepped(2, call.heads, call.q_head) && stepped(8, stores, call.k_batch) && stepped(8, rows, call.k_row) &&
        stepped(8, call.kv_heads, call.k_head) && stepped(8, stores, call.v_batch) && stepped(8, rows, call.v_row) &&
        stepped(8, call.kv_heads, call.v_head) && stepped(4, call.batch, call.out_batch) &&
        stepped(4, call.queries, call.out_row) && stepped(4, call.heads, call.out_head);
    if (!aligned || call.new_k == nullptr) {
      return aligned ? kDecodeRuns : kDecodeAlignment;
    }
    bool const turned = call.pairs >= 0 && 2 * call.pairs <= call.head_dim &&
                        call.pairs % (call.interleaved ? 4 : 8) == 0 &&
                        (call.pairs == 0 || call.frequencies != nullptr);
    bool const appended = call.queries == 1 && call.lengths != nullptr && call.new_v != nullptr &&
                          placed(8, call.q) && stepped(8, call.batch, call.q_batch) &&
                          stepped(8, call.heads, call.q_head) && placed(8, call.new_k) && placed(8, call.new_v) &&
                          stepped(8, call.batch, call.new_k_batch) && stepped(8, call.kv_heads, call.new_k_head) &&
                          stepped(8, call.batch, call.new_v_batch) && stepped(8, call.kv_heads, call.new_v_head);
    return turned && appended ? kDecodeRuns : kDecodeAppend;
  }

  template <bool kPaged, bool kAppends>
  static void const *function() {
    return reinterpret_cast<void const *>(&decode_attention<Traits, kPaged, kAppends>);
  }
  static void const *function(bool paged, bool appends) {
    if (appends) {
      return paged ? function<true, true>() : function<false, true>();
    }
    return paged ? function<true, false>() : function<false, false>();
  }

  /* Blocks that keep the memory of the current device busy, one to a multiprocessor or as many as form
   * clusters; found out once. Or -cudaError_t. */
  static int blocks_wanted(gemmsmith_attention const &call) {
    constexpr int kDevices = 64;
    static int known[kDevices] = {}; /* a race repeats the calls, which is harmless */
    bool const listed = call.device >= 0 && call.device < kDevices;
    if (listed && known[call.device] > 0) {
      return known[call.device];
    }
    cudaError_t error = cudaSuccess;
    for (int kind = 0; kind < 4 && error == cudaSuccess; ++kind) {
      error = cudaFuncSetAttribute(function(kind & 1, kind & 2), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Kernel::kSharedBytes);
    }
    int found = call.sm_count;
#if CUDART_VERSION >= 11080
    if (error == cudaSuccess && kCluster > 1) {
      cudaLaunchAttribute attribute{};
      cudaLaunchConfig_t config = configuration(dim3(kCluster), nullptr, &attribute);
      error = cudaOccupancyMaxActiveClusters(&found, function(true, true), &config);
      found = found * kCluster < call.sm_count ? found * kCluster : call.sm_count;
    }
#endif
    if (error != cudaSuccess) {
      cudaGetLastError(); /* not sticky: do not leave it to the next caller */
      return -int(error);
    }
    found = found > 0 ? found : 1;
    if (listed) {
      known[call.device] = found;
    }
    return found;
  }

  /* Most keys that the rows of a block can see. */
  static int seen(gemmsmith_attention const &call) {
    int64_t const keys = call.window > 0 && call.window + call.queries - 1 < call.keys ? call.window + call.queries - 1
                                                                                       : call.keys;
    return int(keys);
  }

  /* Blocks that share the keys of a row of the grid: the number, of those that give each multiprocessor one
   * block, two and so on, with which the busiest has the least to read. A block costs about as much as
   * kFixed more keys; more blocks side by side on a multiprocessor do not read faster. */
  static int splits(gemmsmith_attention const &call, int blocks) {
    constexpr int64_t kFixed = (128 << 7) / Kernel::kHeadDim, kMostWaves = 4;
    int64_t const keys = seen(call), rows = groups(call);
    int64_t const wanted = call.splits ? call.splits : (keys + Kernel::kLeastKeys - 1) / Kernel::kLeastKeys;
    int64_t const most = (wanted < 1 ? 1 : wanted > 65535 ? 65535 : wanted + kCluster - 1) / kCluster * kCluster;
    if (call.splits) {
      return int(most < kCluster ? kCluster : most);
    }
    int64_t best = kCluster, least = INT64_MAX;
    for (int64_t wave = 1; wave <= kMostWaves; ++wave) {
      int64_t found = wave * blocks / rows / kCluster * kCluster;
      found = found > most ? most : found;
      found = found < kCluster ? kCluster : found;
      int64_t const rounds = (found * rows + blocks - 1) / blocks;
      int64_t const cost = rounds * ((keys + found - 1) / found + kFixed);
      if (cost < least) {
        least = cost;
        best = found;
      }
    }
    return int(best);
  }

  static gemmsmith_status needs(gemmsmith_attention const *call, uint64_t *workspace, uint64_t *counters) {
    *workspace = *counters = 0;
    gemmsmith_status const status = can_run(call);
    int const blocks = status == kDecodeRuns ? blocks_wanted(*call) : 0;
    if (status != kDecodeRuns || blocks < 0) {
      return status != kDecodeRuns ? status : blocks;
    }
    int64_t const parts = splits(*call, blocks) / kCluster;
    if (parts > 1) {
      *workspace = uint64_t(groups(*call) * parts * Kernel::kPartialFloats * 4);
      *counters = uint64_t(groups(*call) * kCluster);
    }
    return kDecodeRuns;
  }

#if CUDART_VERSION >= 11080
  static cudaLaunchConfig_t configuration(dim3 grid, cudaStream_t stream, cudaLaunchAttribute *attributes) {
    cudaLaunchConfig_t config{grid, dim3(Kernel::kThreads), Kernel::kSharedBytes, stream, attributes, 0};
    if (kCluster > 1) {
      cudaLaunchAttribute &attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = kCluster;
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    }
    return config;
  }
#endif

  static DecodeParams params(gemmsmith_attention const &call, int splits, void *workspace) {
    constexpr float kLog2e = 1.4426950408889634f;
    int const group = int(call.heads / call.kv_heads);
    int page_shift = 0;
    while (call.block_table != nullptr && 1 << page_shift < call.page_size) {
      ++page_shift;
    }
    KeyShares const shares =
        share_keys(seen(call), splits, kCluster, Kernel::kTile, Kernel::kLeastKeys);
    return {call.q,
            call.k,
            call.v,
            call.out,
            call.q_batch,
            call.q_row,
            call.q_head,
            call.k_batch,
            call.k_row,
            call.k_head,
            call.v_batch,
            call.v_row,
            call.v_head,
            call.out_batch,
            call.out_row,
            call.out_head,
            group,
            int(call.queries),
            int(call.keys),
            int(call.head_dim),
            int(group * call.queries),
            int(row_groups(call)),
            call.softcap > 0.0f ? 2.0f * kLog2e * call.scale / call.softcap : kLog2e * call.scale,
            call.softcap,
            call.window,
            call.causal,
            call.lengths,
            shares.chunk,
            shares.clusters,
            call.block_table,
            call.table_stride,
            page_shift,
            static_cast<float *>(workspace),
            call.counters,
            {call.new_k, call.new_v, call.new_k_batch, call.new_k_head, call.new_v_batch, call.new_v_head,
             call.frequencies, int(call.pairs), call.wide_frequencies != 0, call.interleaved != 0, call.rope_factor,
             int(call.pages)}};
  }

  static gemmsmith_status launch(gemmsmith_attention const *given, void *workspace, void *stream) {
    gemmsmith_attention const &call = *given;
    gemmsmith_status const status = can_run(given);
    if (status != kDecodeRuns || call.batch == 0) {
      return status;
    }
    int const blocks = blocks_wanted(call);
    if (blocks < 0) {
      return blocks;
    }
    int const parts = splits(call, blocks);
    if (parts > kCluster && (workspace == nullptr || call.counters == nullptr)) {
      return kDecodeMemory;
    }
    DecodeParams copy = params(call, parts, workspace);
    void *arguments[] = {&copy};
    dim3 const grid(unsigned(parts), unsigned(call.kv_heads * row_groups(call)), unsigned(call.batch));
    void const *const kernel = function(call.block_table != nullptr, call.new_k != nullptr);
    auto const queue = static_cast<cudaStream_t>(stream);
    cudaError_t error;
#if CUDART_VERSION >= 11080
    if constexpr (kCluster > 1 || Traits::kDependentLaunch) {
      cudaLaunchAttribute attributes[2] = {};
      cudaLaunchConfig_t config = configuration(grid, queue, attributes);
      if (Traits::kDependentLaunch) {
        start_early(config);
      }
      error = cudaLaunchKernelExC(&config, kernel, arguments);
    } else
#endif
    {
      error = cudaLaunchKernel(kernel, grid, dim3(Kernel::kThreads), arguments, Kernel::kSharedBytes, queue);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();
    }
    return -static_cast<gemmsmith_status>(error);
  }

  static constexpr gemmsmith_attention_kernel entry(const char *name) {
    return {name,    Kernel::kThreads, Kernel::kSharedBytes, Kernel::kStages, Traits::kDependentLaunch,
            can_run, needs,            launch,               explain_decode};
  }
};

}  // namespace gemmsmith
