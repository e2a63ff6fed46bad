// Loads kernel libraries and calls their kernels: the C interface of gemmsmith/abi.h for Python.
// It knows neither torch nor CUDA; pointers and streams arrive as integers.

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "call.h"
#include "gemmsmith/abi.h"
#include "rope_call.h"
#include "settled.h"

namespace {

constexpr Py_ssize_t kRowCallFields = 16;

// The order of gemmsmith.launcher.RowCall.
gemmsmith_rows unpack_rows(py::tuple const &call) {
  if (PyTuple_GET_SIZE(call.ptr()) != kRowCallFields) {
    throw std::invalid_argument("a call has 16 fields, see gemmsmith.launcher.RowCall");
  }
  gemmsmith_rows rows{};
  rows.rows = integer(call, 0);
  rows.columns = integer(call, 1);
  rows.padded = integer(call, 2);
  rows.x = address<const void *>(call, 3);
  rows.residual = address<const void *>(call, 4);
  rows.weight = address<const void *>(call, 5);
  rows.sum = address<void *>(call, 6);
  rows.out = address<void *>(call, 7);
  rows.scale = address<float *>(call, 8);
  rows.x_stride = integer(call, 9);
  rows.residual_stride = integer(call, 10);
  rows.sum_stride = integer(call, 11);
  rows.out_stride = integer(call, 12);
  rows.eps = real(call, 13);
  rows.activation = static_cast<int32_t>(integer(call, 14));
  rows.interleaved = static_cast<int32_t>(integer(call, 15));
  return rows;
}

struct RowKernel {
  gemmsmith_row_kernel const *entry;

  int32_t launch(py::tuple const &call, uintptr_t stream) const {
    gemmsmith_rows const rows = unpack_rows(call);
    return entry->launch(&rows, reinterpret_cast<void *>(stream));
  }
};

// Gives the function `name` of a kernel library, which returns its table. Libraries stay loaded: a
// kernel in flight must not lose its code.
template <class Function>
Function *table_of(std::string const &path, char const *name) {
  void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw std::runtime_error(dlerror());
  }
  auto const version = reinterpret_cast<decltype(&gemmsmith_abi_version)>(dlsym(handle, "gemmsmith_abi_version"));
  auto const kernels = reinterpret_cast<Function *>(dlsym(handle, name));
  if (version == nullptr || kernels == nullptr) {
    throw std::runtime_error("it is no kernel library: " + std::string(name) + " is missing");
  }
  if (version() != GEMMSMITH_ABI_VERSION) {
    throw std::runtime_error("its interface has version " + std::to_string(version()) + ", this gemmsmith speaks " +
                             std::to_string(GEMMSMITH_ABI_VERSION) + ": build the kernel again");
  }
  return kernels;
}

template <class Wrapper, class Function>
py::list wrap(Function *kernels) {
  int32_t count = 0;
  auto const *table = kernels(&count);
  py::list result;
  for (int32_t index = 0; index < count; ++index) {
    result.append(Wrapper{table + index});
  }
  return result;
}

py::list load(std::string const &path) {
  return wrap<Kernel>(table_of<decltype(gemmsmith_kernels)>(path, "gemmsmith_kernels"));
}

// Gives the row kernels of a library, of either kind.
py::list load_rows(std::string const &path) {
  void *const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr && dlsym(handle, "gemmsmith_rope_kernels") != nullptr) {
    return wrap<RopeKernel>(table_of<decltype(gemmsmith_rope_kernels)>(path, "gemmsmith_rope_kernels"));
  }
  return wrap<RowKernel>(table_of<decltype(gemmsmith_row_kernels)>(path, "gemmsmith_row_kernels"));
}

template <class Wrapper>
void add_row_kernel(py::module_ &module, char const *name) {
  py::class_<Wrapper>(module, name)
      .def_property_readonly("name", [](Wrapper const &self) { return std::string(self.entry->name); })
      .def_property_readonly("threads", [](Wrapper const &self) { return self.entry->threads; })
      .def_property_readonly("shared_bytes", [](Wrapper const &self) { return self.entry->shared_bytes; })
      .def_property_readonly("stages", [](Wrapper const &) { return 0; })
      .def_property_readonly("dependent_launch", [](Wrapper const &self) { return self.entry->dependent_launch != 0; })
      .def("launch", &Wrapper::launch)
      .def("explain", [](Wrapper const &self, int32_t status) { return std::string(self.entry->explain(status)); });
}

py::list load_attention(std::string const &path) {
  return wrap<AttentionKernel>(
      table_of<decltype(gemmsmith_attention_kernels)>(path, "gemmsmith_attention_kernels"));
}

}  // namespace

PYBIND11_MODULE(gemmsmith_launcher, module) {
  module.doc() = "Calls kernel libraries through gemmsmith's C interface.";
  py::class_<Kernel>(module, "Kernel")
      .def_property_readonly("name", [](Kernel const &self) { return std::string(self.entry->name); })
      .def_property_readonly("threads", [](Kernel const &self) { return self.entry->threads; })
      .def_property_readonly("shared_bytes", [](Kernel const &self) { return self.entry->shared_bytes; })
      .def_property_readonly("stages", [](Kernel const &self) { return self.entry->stages; })
      .def_property_readonly("dependent_launch", [](Kernel const &self) { return self.entry->dependent_launch != 0; })
      .def("can_run", &Kernel::can_run)
      .def("workspace_bytes", &Kernel::workspace_bytes)
      .def("launch", &Kernel::launch)
      .def("blocks_per_sm", &Kernel::blocks_per_sm)
      .def("explain", [](Kernel const &self, int32_t status) { return std::string(self.entry->explain(status)); });
  py::class_<Settled, std::shared_ptr<Settled>>(module, "Settled")
      .def_property_readonly("launch", &Settled::function)
      .def("find", &Settled::find)
      .def("settle", &Settled::settle)
      .def("clear", &Settled::clear)
      .def("__len__", &Settled::size);
  add_row_kernel<RowKernel>(module, "RowKernel");
  add_row_kernel<RopeKernel>(module, "RopeKernel");
  py::class_<AttentionKernel>(module, "AttentionKernel")
      .def_property_readonly("name", [](AttentionKernel const &self) { return std::string(self.entry->name); })
      .def_property_readonly("threads", [](AttentionKernel const &self) { return self.entry->threads; })
      .def_property_readonly("shared_bytes", [](AttentionKernel const &self) { return self.entry->shared_bytes; })
      .def_property_readonly("stages", [](AttentionKernel const &self) { return self.entry->stages; })
      .def_property_readonly("dependent_launch",
                             [](AttentionKernel const &self) { return self.entry->dependent_launch != 0; })
      .def("can_run", &AttentionKernel::can_run)
      .def("needs", &AttentionKernel::needs)
      .def("launch", &AttentionKernel::launch)
      .def("explain", [](AttentionKernel const &self, int32_t status) { return std::string(self.entry->explain(status)); });
  module.def("settled", &Settled::make, py::arg("host"));
  module.def("load", &load, py::arg("path"));
  module.def("load_rows", &load_rows, py::arg("path"));
  module.def("load_attention", &load_attention, py::arg("path"));
}
