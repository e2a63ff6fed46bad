// A call of a kernel, as Python gives it and as the C interface takes it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>

#include "gemmsmith/abi.h"

namespace py = pybind11;

namespace {

constexpr Py_ssize_t kCallFields = 30;

int64_t integer(py::tuple const &call, Py_ssize_t index) {
  long long const value = PyLong_AsLongLong(PyTuple_GET_ITEM(call.ptr(), index));
  if (value == -1 && PyErr_Occurred()) {
    throw py::error_already_set();
  }
  return value;
}

float real(py::tuple const &call, Py_ssize_t index) {
  double const value = PyFloat_AsDouble(PyTuple_GET_ITEM(call.ptr(), index));
  if (value == -1.0 && PyErr_Occurred()) {
    throw py::error_already_set();
  }
  return static_cast<float>(value);
}

template <class Pointer>
Pointer address(py::tuple const &call, Py_ssize_t index) {
  return reinterpret_cast<Pointer>(static_cast<uintptr_t>(integer(call, index)));
}

// The order of gemmsmith.launcher.Call.
gemmsmith_gemm unpack(py::tuple const &call) {
  if (PyTuple_GET_SIZE(call.ptr()) != kCallFields) {
    throw std::invalid_argument("a call has 30 fields, see gemmsmith.launcher.Call");
  }
  gemmsmith_gemm gemm{};
  gemm.m = integer(call, 0);
  gemm.n = integer(call, 1);
  gemm.k = integer(call, 2);
  gemm.batch = integer(call, 3);
  gemm.a = address<const void *>(call, 4);
  gemm.b = address<const void *>(call, 5);
  gemm.c = address<const void *>(call, 6);
  gemm.bias = address<const void *>(call, 7);
  gemm.d = address<void *>(call, 8);
  gemm.a_scale = address<const float *>(call, 9);
  gemm.b_scale = address<const float *>(call, 10);
  gemm.a_zero = address<const int32_t *>(call, 11);
  gemm.b_sum = address<const int32_t *>(call, 12);
  gemm.lda = integer(call, 13);
  gemm.ldb = integer(call, 14);
  gemm.ldc = integer(call, 15);
  gemm.ldd = integer(call, 16);
  gemm.a_batch = integer(call, 17);
  gemm.b_batch = integer(call, 18);
  gemm.c_batch = integer(call, 19);
  gemm.d_batch = integer(call, 20);
  gemm.alpha = real(call, 21);
  gemm.beta = real(call, 22);
  gemm.out_scale = real(call, 23);
  gemm.activation = static_cast<int32_t>(integer(call, 24));
  gemm.raster = static_cast<int32_t>(integer(call, 25));
  gemm.swizzle = static_cast<int32_t>(integer(call, 26));
  gemm.splits = static_cast<int32_t>(integer(call, 27));
  gemm.device = static_cast<int32_t>(integer(call, 28));
  gemm.sm_count = static_cast<int32_t>(integer(call, 29));
  return gemm;
}

struct Kernel {
  gemmsmith_kernel const *entry;

  int32_t can_run(py::tuple const &call) const {
    gemmsmith_gemm const gemm = unpack(call);
    return entry->can_run(&gemm);
  }

  py::tuple workspace_bytes(py::tuple const &call) const {
    gemmsmith_gemm const gemm = unpack(call);
    uint64_t bytes = 0;
    int32_t const status = entry->workspace_bytes(&gemm, &bytes);
    return py::make_tuple(status, bytes);
  }

  int32_t launch(py::tuple const &call, uintptr_t workspace, uintptr_t stream) const {
    gemmsmith_gemm const gemm = unpack(call);
    return entry->launch(&gemm, reinterpret_cast<void *>(workspace), reinterpret_cast<void *>(stream));
  }

  py::tuple blocks_per_sm() const {
    int32_t blocks = 0;
    int32_t const status = entry->blocks_per_sm(&blocks);
    return py::make_tuple(status, blocks);
  }
};

}  // namespace
