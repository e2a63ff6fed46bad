// What a call asks of the table of settled ones: its arguments, read and made a key of.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dlpack.h"

namespace py = pybind11;

namespace {

// The order of gemmsmith.launcher.Arguments, then what the caller says of them.
enum Argument {
  kA, kB, kBias, kResidual, kAlpha, kBeta, kKernels, kActivation, kGate, kAScale, kBScale, kAZero, kBSum, kOutScale,
  kOutDtype, kOut, kFlags, kArguments
};
constexpr std::array<int, 8> kInputs{kA, kB, kBias, kResidual, kAScale, kBScale, kAZero, kBSum};
constexpr std::array<int, 4> kWords{kKernels, kActivation, kGate, kOutDtype};
constexpr long kTransposed = 1;  // b is (N, K)
constexpr long kChecked = 2;     // below torch's dispatcher, which has seen to everything else

constexpr int kMostDimensions = 6;

class Key {
 public:
  void add(int64_t word) { words_[size_++] = word; }

  uint64_t hash() const {
    uint64_t hash = size_;
    for (size_t index = 0; index < size_; ++index) {
      hash = (hash ^ static_cast<uint64_t>(words_[index])) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }

  bool operator==(std::vector<int64_t> const &other) const {
    return size_ == other.size() && std::memcmp(words_.data(), other.data(), size_ * sizeof(int64_t)) == 0;
  }

  std::vector<int64_t> words() const { return {words_.begin(), words_.begin() + size_}; }

 private:
  std::array<int64_t, (1 + kInputs.size()) * (1 + 2 * kMostDimensions) + kWords.size() + 1> words_;
  size_t size_ = 0;
};

// The arguments of a call that the table may know.
struct Asked {
  Key key;
  std::array<dlpack::Tensor, kArguments> tensors;
  double alpha, beta, out_scale;
};

inline void *address(dlpack::Tensor const &tensor) { return static_cast<char *>(tensor.data) + tensor.byte_offset; }

inline long flags(PyObject *const *arguments) { return PyLong_AsLong(arguments[kFlags]); }

class Reader {
 public:
  // `host` is a gemmsmith.launcher.Host.
  explicit Reader(py::object const &host) : tensor_(host.attr("tensor")), parameter_(host.attr("parameter")) {
    py::object const capsule = host.attr("exchange");
    auto *exchange = static_cast<dlpack::Exchange *>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
    if (exchange == nullptr) {
      throw py::error_already_set();
    }
    while (exchange != nullptr && exchange->major != dlpack::kMajor) {
      exchange = exchange->previous;
    }
    borrow_ = exchange == nullptr ? nullptr : exchange->borrow;
  }

  // Whether the exchange interface is of a kind that lends tensors.
  bool can_read() const { return borrow_ != nullptr; }

  // Makes the words of a call known: others are in no key.
  void learn(PyObject *const *arguments) {
    for (int const word : kWords) {
      py::object const value = py::reinterpret_borrow<py::object>(arguments[word]);
      if (!words_.contains(value)) {
        words_[value] = words_.size();
      }
    }
  }

  // Reads the arguments; false where no table can hold such a call.
  bool ask(PyObject *const *arguments, Asked &asked) {
    long const said = flags(arguments);
    for (int const word : kWords) {
      PyObject *number = PyDict_GetItemWithError(words_.ptr(), arguments[word]);
      if (number == nullptr) {
        PyErr_Clear();  // it cannot be hashed
        return false;
      }
      asked.key.add(PyLong_AsLong(number));
    }
    if (!real(arguments[kAlpha], asked.alpha) || !real(arguments[kOutScale], asked.out_scale)) {
      return false;
    }
    bool const added = arguments[kResidual] != Py_None;
    if (arguments[kBeta] == Py_None) {
      asked.beta = added ? 1.0 : 0.0;
    } else if (!real(arguments[kBeta], asked.beta)) {
      return false;
    }
    for (int const input : kInputs) {
      if (!read(arguments[input], said, input == kB, asked.tensors[input], asked.key)) {
        return false;
      }
    }
    if (!read(arguments[kOut], said, false, asked.tensors[kOut], asked.key)) {
      return false;
    }
    void const *out = address(asked.tensors[kOut]);
    int64_t facts = whole(asked.alpha) && whole(asked.beta);
    facts |= (asked.beta == 0.0) << 1;
    facts |= (out != nullptr && out == address(asked.tensors[kA])) << 2;
    facts |= (out != nullptr && out == address(asked.tensors[kB])) << 3;
    asked.key.add(facts);
    return true;
  }

  // False with a Python exception set.
  bool borrow(PyObject *object, dlpack::Tensor &tensor) const { return borrow_(object, &tensor) == 0; }

 private:
  // Adds a tensor to the key; false where it is not one whose memory alone says what it holds.
  bool read(PyObject *object, long said, bool is_b, dlpack::Tensor &tensor, Key &key) {
    if (object == Py_None) {
      tensor = {};
      key.add(0);
      return true;
    }
    auto *type = reinterpret_cast<PyObject *>(Py_TYPE(object));
    bool const plain = type == tensor_.ptr() || type == parameter_.ptr();
    if (!plain && !((said & kChecked) && PyObject_IsInstance(object, tensor_.ptr()) == 1)) {
      return false;
    }
    if (!borrow(object, tensor)) {
      PyErr_Clear();
      return false;
    }
    int const dimensions = tensor.dimensions;
    if (tensor.data == nullptr || dimensions > kMostDimensions) {
      return false;
    }
    auto const place = reinterpret_cast<uintptr_t>(address(tensor));
    if (!(said & kChecked) && dlpack::real(tensor) && place % (tensor.type_bits / 4) != 0) {
      return false;  // it may be the imaginary part of complex numbers, which torch may have to negate
    }
    key.add(1 | static_cast<int64_t>(place & 15) << 1 | static_cast<int64_t>(dimensions) << 5 |
            static_cast<int64_t>(tensor.type_code) << 16 | static_cast<int64_t>(tensor.type_bits) << 24 |
            static_cast<int64_t>(tensor.device_type) << 32 | static_cast<int64_t>(tensor.device_index) << 40);
    bool const turned = is_b && (said & kTransposed);
    if (turned && dimensions != 2) {
      return false;
    }
    for (int index = 0; index < dimensions; ++index) {
      int const from = turned ? 1 - index : index;
      key.add(tensor.shape[from]);
      key.add(tensor.strides[from]);
    }
    return true;
  }

  static bool whole(double value) { return std::isfinite(value) && value == std::floor(value); }

  static bool real(PyObject *object, double &value) {
    if (!PyFloat_Check(object) && !PyLong_Check(object)) {
      return false;
    }
    value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();  // an integer beyond every float
      return false;
    }
    return true;
  }

  py::object tensor_, parameter_;
  py::dict words_;
  int (*borrow_)(void *, dlpack::Tensor *);
};

}  // namespace
