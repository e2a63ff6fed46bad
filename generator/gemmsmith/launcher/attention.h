// A call of an attention kernel, as Python gives it and as the C interface takes it.
#pragma once

#include "call.h"
#include "gemmsmith/attention_abi.h"

namespace {

constexpr Py_ssize_t kAttentionCallFields = 50;

// The order of gemmsmith.launcher.AttentionCall.
gemmsmith_attention unpack_attention(py::tuple const &call) {
  if (PyTuple_GET_SIZE(call.ptr()) != kAttentionCallFields) {
    throw std::invalid_argument("a call has 50 fields, see gemmsmith.launcher.AttentionCall");
  }
  gemmsmith_attention attention{};
  attention.q = address<void const *>(call, 0);
  attention.k = address<void const *>(call, 1);
  attention.v = address<void const *>(call, 2);
  attention.out = address<void *>(call, 3);
  attention.lengths = address<int32_t const *>(call, 4);
  attention.cu_q = address<int32_t const *>(call, 5);
  attention.cu_k = address<int32_t const *>(call, 6);
  attention.block_table = address<int32_t const *>(call, 7);
  attention.batch = integer(call, 8);
  attention.queries = integer(call, 9);
  attention.keys = integer(call, 10);
  attention.heads = integer(call, 11);
  attention.kv_heads = integer(call, 12);
  attention.head_dim = integer(call, 13);
  attention.tokens_q = integer(call, 14);
  attention.tokens_k = integer(call, 15);
  attention.q_batch = integer(call, 16);
  attention.q_row = integer(call, 17);
  attention.q_head = integer(call, 18);
  attention.k_batch = integer(call, 19);
  attention.k_row = integer(call, 20);
  attention.k_head = integer(call, 21);
  attention.v_batch = integer(call, 22);
  attention.v_row = integer(call, 23);
  attention.v_head = integer(call, 24);
  attention.out_batch = integer(call, 25);
  attention.out_row = integer(call, 26);
  attention.out_head = integer(call, 27);
  attention.pages = integer(call, 28);
  attention.page_size = integer(call, 29);
  attention.table_stride = integer(call, 30);
  attention.scale = real(call, 31);
  attention.softcap = real(call, 32);
  attention.causal = static_cast<int32_t>(integer(call, 33));
  attention.window = static_cast<int32_t>(integer(call, 34));
  attention.splits = static_cast<int32_t>(integer(call, 35));
  attention.device = static_cast<int32_t>(integer(call, 36));
  attention.sm_count = static_cast<int32_t>(integer(call, 37));
  attention.counters = address<uint32_t *>(call, 38);
  attention.new_k = address<void const *>(call, 39);
  attention.new_v = address<void const *>(call, 40);
  attention.frequencies = address<void const *>(call, 41);
  attention.new_k_batch = integer(call, 42);
  attention.new_k_head = integer(call, 43);
  attention.new_v_batch = integer(call, 44);
  attention.new_v_head = integer(call, 45);
  attention.pairs = integer(call, 46);
  attention.rope_factor = real(call, 47);
  attention.interleaved = static_cast<int32_t>(integer(call, 48));
  attention.wide_frequencies = static_cast<int32_t>(integer(call, 49));
  return attention;
}

struct AttentionKernel {
  gemmsmith_attention_kernel const *entry;

  int32_t can_run(py::tuple const &call) const {
    gemmsmith_attention const attention = unpack_attention(call);
    return entry->can_run(&attention);
  }

  py::tuple needs(py::tuple const &call) const {
    gemmsmith_attention const attention = unpack_attention(call);
    uint64_t bytes = 0, counters = 0;
    int32_t const status = entry->needs(&attention, &bytes, &counters);
    return py::make_tuple(status, bytes, counters);
  }

  int32_t launch(py::tuple const &call, uintptr_t workspace, uintptr_t stream) const {
    gemmsmith_attention const attention = unpack_attention(call);
    return entry->launch(&attention, reinterpret_cast<void *>(workspace), reinterpret_cast<void *>(stream));
  }
};

}  // namespace
