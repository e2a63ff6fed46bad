// The part of DLPack's C exchange interface (major version 1) that reads tensors: what a tensor type
// offers in its attribute __dlpack_c_exchange_api__. It is a stable ABI, so that no header of the
// framework is needed and a binary outlives its updates.
#pragma once

#include <cstdint>

namespace dlpack {

constexpr uint32_t kMajor = 1;
constexpr char kCapsule[] = "dlpack_exchange_api";

constexpr uint8_t kFloat = 2, kBfloat = 4;  // type codes

struct Tensor {
  void *data;
  int32_t device_type, device_index;
  int32_t dimensions;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t *shape, *strides;  // strides count elements
  uint64_t byte_offset;
};

inline bool real(Tensor const &tensor) { return tensor.type_code == kFloat || tensor.type_code == kBfloat; }

struct Exchange {
  uint32_t major, minor;
  Exchange *previous;  // one of an older major version, or null
  void *allocate, *own, *wrap;
  int (*borrow)(void *object, Tensor *tensor);  // may be null; not 0: a Python exception is set
  void *stream;
};

static_assert(sizeof(Tensor) == 48 && sizeof(Exchange) == 56, "the layout that DLPack states");

}  // namespace dlpack
