// A call of a rotary kernel, as Python gives it and as the C interface takes it.
#pragma once

#include "call.h"
#include "gemmsmith/rope_abi.h"

namespace {

// The order of gemmsmith.launcher.RopeCall.
gemmsmith_rope unpack_rope(py::tuple const &call) {
  constexpr Py_ssize_t kFields = 43;
  if (PyTuple_GET_SIZE(call.ptr()) != kFields) {
    throw std::invalid_argument("a call has 43 fields, see gemmsmith.launcher.RopeCall");
  }
  gemmsmith_rope rope{};
  Py_ssize_t at = 0;
  for (int64_t *size : {&rope.batch, &rope.length, &rope.heads, &rope.kv_heads, &rope.head_dim, &rope.pairs}) {
    *size = integer(call, at++);
  }
  rope.q = address<void *>(call, at++);
  rope.k = address<void *>(call, at++);
  rope.v = address<const void *>(call, at++);
  rope.k_cache = address<void *>(call, at++);
  rope.v_cache = address<void *>(call, at++);
  rope.positions = address<const void *>(call, at++);
  rope.slots = address<const void *>(call, at++);
  rope.frequencies = address<const void *>(call, at++);
  rope.table = address<const int32_t *>(call, at++);
  for (int64_t *size :
       {&rope.q_batch, &rope.q_token, &rope.q_head, &rope.k_batch, &rope.k_token, &rope.k_head, &rope.v_batch,
        &rope.v_token, &rope.v_head, &rope.k_page, &rope.k_slot, &rope.k_cache_head, &rope.v_page, &rope.v_slot,
        &rope.v_cache_head, &rope.positions_batch, &rope.positions_token, &rope.slots_batch, &rope.slots_token,
        &rope.table_row, &rope.columns, &rope.pages, &rope.page_size}) {
    *size = integer(call, at++);
  }
  rope.factor = real(call, at++);
  for (int32_t *flag : {&rope.interleaved, &rope.wide_positions, &rope.wide_slots, &rope.wide_frequencies}) {
    *flag = static_cast<int32_t>(integer(call, at++));
  }
  return rope;
}

struct RopeKernel {
  gemmsmith_rope_kernel const *entry;

  int32_t launch(py::tuple const &call, uintptr_t stream) const {
    gemmsmith_rope const rope = unpack_rope(call);
    return entry->launch(&rope, reinterpret_cast<void *>(stream));
  }
};

}  // namespace
