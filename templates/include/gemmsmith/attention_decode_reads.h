/* How attention_decode.h's kernels read: keys and values through buffers in shared memory, queries into registers. */
#pragma once

#include "gemmsmith/attention_decode_shape.h"

namespace gemmsmith {

template <class Traits>
struct DecodeReads : DecodeShape<Traits> {
  using Shape = DecodeShape<Traits>;
  using typename Shape::Element;
  using typename Shape::Place;
  using Shape::kChunks;
  using Shape::kCopies;
  using Shape::kFreshPitch;
  using Shape::kRowBlocks;
  using Shape::kSteps;
  using Shape::kTeamThreads;
  using Shape::kTile;
  using Shape::kTileBytes;

  /* The stream of a team's keys, or of its values, into shared memory. */
  template <bool kPaged>
  struct Stream {
    Element const *base;
    int64_t token, page;
    int end; /* zeros in place of keys from here on */
    uint32_t target;
    uint64_t policy;

    /* Starts the copies of tile i into buffer `slot`. With a table lane l says where key l's page is. */
    __device__ void load(Place const &place, int tile, int tiles, int slot, int pages) const {
      if (tile < tiles) {
        DecodeParams const &params = place.params;
        int const thread = place.member * 32 + place.lane, key = place.key(tile);
        uint32_t const buffer = target + slot * kTileBytes;
#pragma unroll
        for (int copy = 0; copy < kCopies; ++copy) {
          int const index = copy * kTeamThreads + thread;
          int const row = index / kChunks, chunk = index % kChunks;
          int64_t offset;
          if constexpr (kPaged) {
            int const number = __shfl_sync(0xffffffffu, pages, row % kTile);
            offset = number * page + ((key + row) & ((1 << params.page_shift) - 1)) * token;
          } else {
            offset = (key + row) * token;
          }
          bool const real = key + row < end && 8 * chunk < params.head_dim;
          if (kTile * kChunks % kTeamThreads == 0 || index < kTile * kChunks) {
            copy_async(Shape::Buffer::address_of(buffer, row, chunk), base + offset + 8 * chunk, real, policy);
          }
        }
      }
      commit_copies();
    }
  };

  /* Has L2 fetch what fills the team's buffers first. A kernel ahead may still write that: it writes to L2, and
   * from there it is read after that kernel has ended. Where the buffers take all there is, values would only
   * come in the way of the keys. */
  __device__ static void warm_l2(Place const &place) {
    constexpr int kLine = 128 / int(sizeof(Element)), kLines = (Shape::kHeadDim + kLine - 1) / kLine;
    DecodeParams const &params = place.params;
    Element const *const k = static_cast<Element const *>(params.k) + place.batch * params.k_batch;
    Element const *const v = static_cast<Element const *>(params.v) + place.batch * params.v_batch;
    bool const values = place.tiles() > Shape::kStages;
    for (int tile = 0; tile < Shape::kStages; ++tile) {
      for (int index = place.member * 32 + place.lane; index < kTile * kLines; index += kTeamThreads) {
        int64_t const key = place.key(tile) + index / kLines;
        int const column = index % kLines * kLine;
        if (key < place.last && column < params.head_dim) {
          fetch_to_l2(k + place.kv_head * params.k_head + key * params.k_token + column);
          if (values) {
            fetch_to_l2(v + place.kv_head * params.v_head + key * params.v_token + column);
          }
        }
      }
    }
  }

  /* The page of key `lane` of a tile; 0 where there is no such key. */
  template <bool kPaged>
  __device__ static int look_up(Place const &place, int tile) {
    if constexpr (kPaged) {
      int const key = place.key(tile) + place.lane;
      if (place.lane < kTile && key < place.last) {
        DecodeParams const &params = place.params;
        return params.table[place.batch * params.table_stride + (key >> params.page_shift)];
      }
    }
    return 0;
  }

  struct Queries {
    uint32_t words[kSteps][kRowBlocks][2];

    /* From the call's q. */
    __device__ explicit Queries(Place const &place) {
      DecodeParams const &params = place.params;
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        int const row = row_of(place, block);
        bool const real = row < place.rows;
        int const there = place.first_row + (real ? row : 0);
        Element const *const from = static_cast<Element const *>(params.q) +
                                    place.offset(there, params.q_batch, params.q_token, params.q_head) +
                                    2 * (place.lane % 4);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            int const column = 16 * step + 8 * half;
            words[step][block][half] =
                real && column < params.head_dim ? *reinterpret_cast<uint32_t const *>(from + column) : 0;
          }
        }
      }
    }

    /* From rows of kFreshPitch bytes in shared memory. */
    __device__ Queries(Place const &place, uint8_t const *rows) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        uint8_t const *const from = rows + row_of(place, block) * kFreshPitch + 4 * (place.lane % 4);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            words[step][block][half] = *reinterpret_cast<uint32_t const *>(from + 32 * step + 16 * half);
          }
        }
      }
    }

    __device__ static int row_of(Place const &place, int block) {
      return (place.member * kRowBlocks + block) * 8 + place.lane / 4;
    }
  };
};

}  // namespace gemmsmith
