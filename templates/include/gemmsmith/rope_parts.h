/* Heads cut into parts for rope.h: what a thread reads, turns and writes, and where tokens go. */
#pragma once

#include <cuda_runtime.h>

#include "gemmsmith/rope_abi.h"
#include "gemmsmith/rope_angles.h"
#include "gemmsmith/row_chunks.h"

namespace gemmsmith {
namespace rope {

using rows::kChunk;

struct Token {
  int64_t sequence, index;
};

__device__ inline int64_t whole_number(void const *from, int64_t index, int32_t wide) {
  return wide ? static_cast<int64_t const *>(from)[index] : static_cast<int32_t const *>(from)[index];
}

__device__ inline int64_t position_of(gemmsmith_rope const &call, Token token) {
  int64_t const at = token.sequence * call.positions_batch + token.index * call.positions_token;
  return whole_number(call.positions, at, call.wide_positions);
}

/* Where in the cache a token goes; a page below 0: nowhere. */
struct Place {
  int64_t page, slot;
};

__device__ inline Place place_of(gemmsmith_rope const &call, Token token) {
  Place const nowhere{-1, 0};
  if (call.slots != nullptr) {
    int64_t const at = token.sequence * call.slots_batch + token.index * call.slots_token;
    int64_t const slot = whole_number(call.slots, at, call.wide_slots);
    return slot < 0 || slot >= call.pages * call.page_size ? nowhere
                                                           : Place{slot / call.page_size, slot % call.page_size};
  }
  int64_t const position = position_of(call, token);
  if (call.table == nullptr) {
    return position < 0 || position >= call.page_size ? nowhere : Place{token.sequence, position};
  }
  if (position < 0 || position >= call.columns * call.page_size) {
    return nowhere;
  }
  int64_t const page = call.table[token.sequence * call.table_row + position / call.page_size];
  return page < 0 || page >= call.pages ? nowhere : Place{page, position % call.page_size};
}

/* How many parts there are of a token, in the order of their numbers: turned ones of q's heads and of
 * k's; then, for a cache, those of k's heads that are not turned, and v's. */
struct Parts {
  int turned, rest, whole; /* of one head: pairs; behind them; of v */
  int heads, kv_heads;
  bool cached;

  __host__ __device__ explicit Parts(gemmsmith_rope const &call)
      : turned(static_cast<int>((call.pairs + kChunk - 1) / kChunk)),
        rest(static_cast<int>((call.head_dim - 2 * call.pairs + 2 * kChunk - 1) / (2 * kChunk))),
        whole(static_cast<int>((call.head_dim + 2 * kChunk - 1) / (2 * kChunk))),
        heads(static_cast<int>(call.heads)),
        kv_heads(static_cast<int>(call.kv_heads)),
        cached(call.k_cache != nullptr) {}

  __host__ __device__ int count() const {
    return (heads + kv_heads) * turned + (cached ? kv_heads * (rest + whole) : 0);
  }
};

/* Two chunks of a head: those of eight pairs, or 16 elements that are only copied. */
template <class T, bool kVector, bool kInterleaved>
struct Part {
  enum Target { kStays, kToK, kToV };

  rows::Raw<T> low, high;
  T *to; /* its head: in place, or in the first slot of the cache */
  Target target;
  int pair;                      /* first of its pairs; below 0: copied */
  int first, second;             /* of its chunks in the head */
  int valid_first, valid_second; /* elements of them that there are */

  __device__ void read(gemmsmith_rope const &call, Parts const &parts, Token token, int number) {
    int const turned = (parts.heads + parts.kv_heads) * parts.turned;
    T const *const from = number < turned ? locate_turned(call, parts, token, number)
                                          : locate_copied(call, parts, token, number - turned);
    low = rows::load<kVector, false>(from + first, valid_first);
    high = rows::load<kVector, false>(from + second, valid_second);
  }

  __device__ T const *locate_turned(gemmsmith_rope const &call, Parts const &parts, Token token, int number) {
    int const pairs = static_cast<int>(call.pairs);
    int const head = number / parts.turned;
    pair = (number - head * parts.turned) * kChunk;
    first = kInterleaved ? 2 * pair : pair;
    second = kInterleaved ? first + kChunk : pairs + pair;
    valid_first = kInterleaved ? 2 * pairs - first : pairs - pair;
    valid_second = kInterleaved ? valid_first - kChunk : valid_first;
    if (head < parts.heads) {
      to = static_cast<T *>(call.q) + token.sequence * call.q_batch + token.index * call.q_token + head * call.q_head;
      target = kStays;
      return to;
    }
    int const own = head - parts.heads;
    T *const k = static_cast<T *>(call.k) + token.sequence * call.k_batch + token.index * call.k_token + own * call.k_head;
    to = parts.cached ? static_cast<T *>(call.k_cache) + own * call.k_cache_head : k;
    target = parts.cached ? kToK : kStays;
    return k;
  }

  __device__ T const *locate_copied(gemmsmith_rope const &call, Parts const &parts, Token token, int number) {
    bool const of_k = number < parts.kv_heads * parts.rest;
    number -= of_k ? 0 : parts.kv_heads * parts.rest;
    int const each = of_k ? parts.rest : parts.whole;
    int const head = number / each;
    pair = -1;
    first = (of_k ? 2 * static_cast<int>(call.pairs) : 0) + (number - head * each) * 2 * kChunk;
    second = first + kChunk;
    valid_first = static_cast<int>(call.head_dim) - first;
    valid_second = valid_first - kChunk;
    target = of_k ? kToK : kToV;
    if (of_k) {
      to = static_cast<T *>(call.k_cache) + head * call.k_cache_head;
      return static_cast<T const *>(call.k) + token.sequence * call.k_batch + token.index * call.k_token +
             head * call.k_head;
    }
    to = static_cast<T *>(call.v_cache) + head * call.v_cache_head;
    return static_cast<T const *>(call.v) + token.sequence * call.v_batch + token.index * call.v_token +
           head * call.v_head;
  }

  /* Turns its pairs by the token's angles. */
  __device__ void turn(float const *cosines, float const *sines) {
    if (pair < 0) {
      return;
    }
    float left[kChunk], right[kChunk], cosine[kChunk], sine[kChunk];
    rows::to_floats(low, left);
    rows::to_floats(high, right);
    int const valid = kInterleaved ? valid_first / 2 : valid_first;
    angles(cosines + pair, valid, cosine);
    angles(sines + pair, valid, sine);
#pragma unroll
    for (int at = 0; at < kChunk; ++at) {
      float &one = !kInterleaved ? left[at] : at < kChunk / 2 ? left[2 * at] : right[2 * at - kChunk];
      float &other = !kInterleaved ? right[at] : at < kChunk / 2 ? left[2 * at + 1] : right[2 * at + 1 - kChunk];
      gemmsmith::rope::turn(one, other, cosine[at], sine[at]);
    }
    low = rows::from_floats<T>(left);
    high = rows::from_floats<T>(right);
  }

  /* Reads what there is of eight cosines or sines. */
  __device__ static void angles(float const *from, int valid, float (&to)[kChunk]) {
#pragma unroll
    for (int at = 0; at < kChunk; at += 4) {
      if constexpr (kVector) { /* the pairs of a token are a multiple of four */
        float4 const four = at < valid ? *reinterpret_cast<float4 const *>(from + at) : float4{};
        to[at] = four.x;
        to[at + 1] = four.y;
        to[at + 2] = four.z;
        to[at + 3] = four.w;
      } else {
#pragma unroll
        for (int one = at; one < at + 4; ++one) {
          to[one] = one < valid ? from[one] : 0.0f;
        }
      }
    }
  }

  __device__ void write(gemmsmith_rope const &call, Place const &place) const {
    T *head = to;
    if (target != kStays) {
      if (place.page < 0) {
        return;
      }
      head += target == kToK ? place.page * call.k_page + place.slot * call.k_slot
                             : place.page * call.v_page + place.slot * call.v_slot;
    }
    rows::store<kVector>(head + first, low, valid_first);
    rows::store<kVector>(head + second, high, valid_second);
  }
};

}  // namespace rope
}  // namespace gemmsmith
