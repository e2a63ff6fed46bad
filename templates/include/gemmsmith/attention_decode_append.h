/* How attention_decode.h's kernels append a key and a value to each sequence: turned by RoPE, as q is, they
 * go to the cache, and from the block's shared memory into the buffer of their tile. So no kernel ahead has
 * to write the cache, and all that is read from it was there before.
 */
#pragma once

#include "gemmsmith/attention_decode_reads.h"
#include "gemmsmith/rope_angles.h"
#include "gemmsmith/row_chunks.h"

namespace gemmsmith {

template <class Traits>
struct DecodeAppender : DecodeShape<Traits> {
  using Shape = DecodeShape<Traits>;
  using Queries = typename DecodeReads<Traits>::Queries;
  using typename Shape::Element;
  using typename Shape::Place;
  using Shape::kChunks;
  using Shape::kHeadDim;
  using Shape::kPitch;
  using Shape::kRowBlocks;
  using Shape::kSteps;
  using Shape::kTeamThreads;
  using Shape::kThreads;
  using Shape::kTile;

  Place const &place;
  DecodeAppend const &call;
  float2 *angles; /* cosine and sine of each pair */
  uint4 *fresh;   /* the key, kChunks of eight elements, and the value */
  bool here;      /* whether the block has the key */

  __device__ explicit DecodeAppender(Place const &of)
      : place(of),
        call(of.params.append),
        angles(reinterpret_cast<float2 *>(dynamic_shared() + Shape::kAppendAt)),
        fresh(reinterpret_cast<uint4 *>(angles + kHeadDim / 2)),
        here(of.newest() >= of.first && of.newest() < of.last) {}

  /* Writes the angles of the newest token's position; they are there once the block has met. */
  __device__ void compute_angles() const {
    for (int pair = int(threadIdx.x); pair < call.pairs; pair += kThreads) {
      angles[pair] = rope::angle_of(place.told - 1, call.frequencies, call.wide, pair, call.factor);
    }
  }

  /* Two elements of a head, `column` the first of them, turned; of halves `partner` are the other ones. */
  __device__ uint32_t turned(uint32_t word, uint32_t partner, int column) const {
    float one, other;
    rows::unpack(word, Element{}, one, other);
    if (call.interleaved) {
      float2 const angle = angles[column / 2];
      rope::turn(one, other, angle.x, angle.y);
      return pack_pair(one, other, Element{});
    }
    bool const second = column >= call.pairs;
    float left, right;
    rows::unpack(partner, Element{}, left, right);
    float2 const *const angle = angles + (second ? column - call.pairs : column);
    if (second) {
      rope::turn(left, one, angle[0].x, angle[0].y);
      rope::turn(right, other, angle[1].x, angle[1].y);
    } else {
      rope::turn(one, left, angle[0].x, angle[0].y);
      rope::turn(other, right, angle[1].x, angle[1].y);
    }
    return pack_pair(one, other, Element{});
  }

  /* Where the partners of a pair of elements begin. */
  __device__ int partner(int column) const {
    return call.interleaved ? column : column < call.pairs ? column + call.pairs : column - call.pairs;
  }

  __device__ void turn(Queries &queries) const {
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      typename DecodeReads<Traits>::QueryRow const row(place, block);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int const column = 16 * step + 8 * half, own = column + 2 * (place.lane % 4);
          uint32_t &word = queries.words[step][block][half];
          if (column < 2 * call.pairs) {
            word = turned(word, row.word(partner(column)), own);
          }
        }
      }
    }
  }

  /* Reads key and value, turns the key, and writes both to the cache and to `fresh`. */
  template <bool kPaged>
  __device__ void fetch() const {
    DecodeParams const &params = place.params;
    for (int index = int(threadIdx.x); index < 2 * kChunks; index += kThreads) {
      bool const value = index >= kChunks;
      int const column = 8 * (value ? index - kChunks : index);
      rows::Raw<Element> chunk{};
      if (column < params.head_dim) {
        int64_t const at =
            place.batch * (value ? call.v_batch : call.k_batch) + place.kv_head * (value ? call.v_head : call.k_head);
        Element const *const from = static_cast<Element const *>(value ? call.v : call.k) + at;
        chunk = rows::load<true, false>(from + column, rows::kChunk);
        if (!value && column < 2 * call.pairs) {
          auto const partners = rows::load<true, false>(from + partner(column), rows::kChunk);
#pragma unroll
          for (int word = 0; word < 4; ++word) {
            chunk.words[word] = turned(chunk.words[word], partners.words[word], column + 2 * word);
          }
        }
        if (place.first_row == 0) { /* of the blocks that share a head the first */
          write<kPaged>(value, column, chunk);
        }
      }
      fresh[index] = make_uint4(chunk.words[0], chunk.words[1], chunk.words[2], chunk.words[3]);
    }
  }

  template <bool kPaged>
  __device__ void write(bool value, int column, rows::Raw<Element> const &chunk) const {
    DecodeParams const &params = place.params;
    int64_t page = place.batch, slot = place.newest();
    if constexpr (kPaged) {
      page = params.table[place.batch * params.table_stride + (slot >> params.page_shift)];
      slot &= (1 << params.page_shift) - 1;
      if (page < 0 || page >= call.pages) {
        return;
      }
    }
    int64_t const at = value ? page * params.v_batch + slot * params.v_token + place.kv_head * params.v_head
                             : page * params.k_batch + slot * params.k_token + place.kv_head * params.k_head;
    auto *const cache = static_cast<Element *>(const_cast<void *>(value ? params.v : params.k));
    rows::store<true>(cache + at + column, chunk, rows::kChunk);
  }

  /* Puts the key, or the value, into the buffer of the team's tile, where it is of that tile. */
  __device__ void place_in(uint8_t *buffer, int tile, bool value) const {
    int const row = place.newest() - place.key(tile);
    if (here && row >= 0 && row < kTile) {
      for (int chunk = place.member * 32 + place.lane; chunk < kChunks; chunk += kTeamThreads) {
        *reinterpret_cast<uint4 *>(buffer + row * kPitch + 16 * chunk) = fresh[value ? kChunks + chunk : chunk];
      }
    }
  }
};

}  // namespace gemmsmith
