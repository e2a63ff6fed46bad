// Launches that were settled once, found again by what their arguments are: sizes, strides, types and
// alignment of tensors, and the words of a call. Only calls that were checked and carried out before
// are in the table, and its key holds all that the checks look at: what is found needs no check.
//
// The same in Python, for torch without DLPack's exchange interface: settled.py.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "asked.h"
#include "call.h"

namespace {

struct Entry {
  std::vector<int64_t> key;
  gemmsmith_kernel const *kernel;  // null: torch takes the call
  gemmsmith_gemm gemm;
  py::object record, ready;
  py::object output;     // how to make one where none is given: shape, strides, dtype
  py::object workspace;  // the same of the workspace; null for none
};

class Settled {
 public:
  // `host` is a gemmsmith.launcher.Host. None where its exchange interface is of another kind.
  static std::shared_ptr<Settled> make(py::object const &host) {
    auto const settled = std::make_shared<Settled>(host);
    return settled->reader_.can_read() ? settled : nullptr;
  }

  explicit Settled(py::object const &host)
      : watchers_(host.attr("watchers")),
        grad_enabled_(host.attr("grad_enabled")),
        current_device_(host.attr("current_device")),
        raw_stream_(host.attr("raw_stream")),
        allocate_(host.attr("allocate")),
        written_(host.attr("written")),
        refuse_(host.attr("refuse")),
        in_torch_(host.attr("in_torch")),
        last_(host.attr("last")),
        byte_(host.attr("byte")),
        reader_(host) {}

  // Gives `launch` as a function whose arguments Python passes without making a tuple of them.
  static py::object function(std::shared_ptr<Settled> const &self) {
    static PyMethodDef definition{"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(&Settled::entered)),
                                  METH_FASTCALL, "Return the result of a settled call, None where it is none."};
    py::capsule const owner(new std::shared_ptr<Settled>(self),
                            [](void *held) { delete static_cast<std::shared_ptr<Settled> *>(held); });
    return py::reinterpret_steal<py::object>(PyCFunction_NewEx(&definition, owner.ptr(), nullptr));
  }

  // Gives what the table knows of a call, None where it is nothing.
  py::object find(py::args const &arguments) {
    Asked asked;
    if (arguments.size() != kArguments || !reader_.ask(&PyTuple_GET_ITEM(arguments.ptr(), 0), asked)) {
      return py::none();
    }
    auto const entry = known(asked.key);
    return entry ? entry->record : py::none();
  }

  void settle(py::tuple const &arguments, py::object const &kernel, py::object const &call, uint64_t workspace,
              py::object const &record, py::object const &ready, py::object const &output) {
    Asked asked;
    if (arguments.size() != kArguments) {
      throw std::invalid_argument("a call has 17 arguments, see gemmsmith.launcher.Settled");
    }
    reader_.learn(&PyTuple_GET_ITEM(arguments.ptr(), 0));
    if (!reader_.ask(&PyTuple_GET_ITEM(arguments.ptr(), 0), asked) || known(asked.key)) {
      return;
    }
    auto const entry = std::make_shared<Entry>();
    entry->key = asked.key.words();
    entry->kernel = kernel.is_none() ? nullptr : kernel.cast<Kernel const &>().entry;
    entry->gemm = call.is_none() ? gemmsmith_gemm{} : unpack(call.cast<py::tuple>());
    entry->record = record;
    entry->ready = ready;
    entry->output = output;
    if (workspace != 0) {
      entry->workspace = py::make_tuple(py::make_tuple(workspace), py::make_tuple(1), byte_);
    }
    entries_.emplace(asked.key.hash(), entry);
  }

  void clear() { entries_.clear(); }

  size_t size() const { return entries_.size(); }

 private:
  static PyObject *entered(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    if (count != kArguments) {
      PyErr_SetString(PyExc_TypeError, "launch takes 17 arguments, see gemmsmith.launcher.Settled");
      return nullptr;
    }
    auto const settled = *static_cast<std::shared_ptr<Settled> *>(PyCapsule_GetPointer(self, nullptr));
    try {
      return settled->launch(arguments).release().ptr();
    } catch (py::error_already_set &error) {
      error.restore();
    } catch (std::exception const &error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
  }

  py::object launch(PyObject *const *arguments) {
    Asked asked;
    if (!reader_.ask(arguments, asked)) {
      return py::none();
    }
    auto const entry = known(asked.key);
    if (!entry) {
      return py::none();
    }
    bool const checked = flags(arguments) & kChecked;
    if (!checked && (watched() || derivative_wanted(arguments))) {
      return py::none();
    }
    bool const given = arguments[kOut] != Py_None;
    py::object out = py::reinterpret_borrow<py::object>(arguments[kOut]);
    if (entry->kernel == nullptr) {
      if (checked) {
        return py::none();
      }
      out = in_torch(*entry, arguments);
      PyList_SetItem(last_.ptr(), 0, entry->record.inc_ref().ptr());
      return out;
    }
    gemmsmith_gemm gemm = entry->gemm;
    if (integer(call(current_device_.ptr())) != gemm.device) {
      return py::none();
    }
    if (!given) {
      uintptr_t const expected = reinterpret_cast<uintptr_t>(gemm.d);
      out = allocate(entry->output, asked.tensors[kOut]);
      if ((reinterpret_cast<uintptr_t>(address(asked.tensors[kOut])) ^ expected) & 15) {
        return py::none();
      }
    }
    fill(gemm, asked);
    py::object buffer;
    dlpack::Tensor workspace{};
    if (entry->workspace) {
      buffer = allocate(entry->workspace, workspace);
    }
    auto const stream = static_cast<uintptr_t>(integer(call(raw_stream_.ptr(), py::int_(gemm.device))));
    int32_t const status = entry->kernel->launch(&gemm, address(workspace), reinterpret_cast<void *>(stream));
    if (status != 0) {
      refuse_(entry->ready, status);
    }
    if (given) {
      call(written_.ptr(), py::make_tuple(out));
    }
    PyList_SetItem(last_.ptr(), 0, entry->record.inc_ref().ptr());
    return out;
  }

  std::shared_ptr<Entry const> known(Key const &key) const {
    auto const [first, last] = entries_.equal_range(key.hash());
    for (auto each = first; each != last; ++each) {
      if (key == each->second->key) {
        return each->second;
      }
    }
    return nullptr;
  }

  // Whether anything but the kernel has to see the call.
  bool watched() const {
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(watchers_.ptr()); ++index) {
      if (truth(call(PyTuple_GET_ITEM(watchers_.ptr(), index)))) {
        return true;
      }
    }
    return false;
  }

  bool derivative_wanted(PyObject *const *arguments) const {
    static PyObject *const name = PyUnicode_InternFromString("requires_grad");
    if (!truth(call(grad_enabled_.ptr()))) {
      return false;
    }
    for (int index = 0; index < kArguments; ++index) {
      bool const tensor = index == kOut || std::find(kInputs.begin(), kInputs.end(), index) != kInputs.end();
      if (tensor && arguments[index] != Py_None &&
          truth(returned(PyObject_GetAttr(arguments[index], name)))) {
        return true;
      }
    }
    return false;
  }

  py::object in_torch(Entry const &entry, PyObject *const *arguments) const {
    std::array<PyObject *, 1 + kArguments> values{entry.output.ptr()};
    std::copy(arguments, arguments + kArguments, values.begin() + 1);
    return returned(PyObject_Vectorcall(in_torch_.ptr(), values.data(), values.size(), nullptr));
  }

  py::object allocate(py::object const &how, dlpack::Tensor &tensor) const {
    py::object made = returned(PyObject_Call(allocate_.ptr(), how.ptr(), nullptr));
    if (!reader_.borrow(made.ptr(), tensor)) {
      throw py::error_already_set();
    }
    return made;
  }

  static void fill(gemmsmith_gemm &gemm, Asked const &asked) {
    gemm.a = address(asked.tensors[kA]);
    gemm.b = address(asked.tensors[kB]);
    gemm.c = asked.beta == 0.0 ? nullptr : address(asked.tensors[kResidual]);
    gemm.bias = address(asked.tensors[kBias]);
    gemm.d = address(asked.tensors[kOut]);
    gemm.a_scale = static_cast<float const *>(address(asked.tensors[kAScale]));
    gemm.b_scale = static_cast<float const *>(address(asked.tensors[kBScale]));
    gemm.a_zero = static_cast<int32_t const *>(address(asked.tensors[kAZero]));
    gemm.b_sum = static_cast<int32_t const *>(address(asked.tensors[kBSum]));
    gemm.alpha = static_cast<float>(asked.alpha);
    gemm.beta = static_cast<float>(asked.beta);
    gemm.out_scale = static_cast<float>(asked.out_scale);
  }

  static int64_t integer(py::object const &value) {
    long long const number = PyLong_AsLongLong(value.ptr());
    if (number == -1 && PyErr_Occurred()) {
      throw py::error_already_set();
    }
    return number;
  }

  static py::object call(PyObject *function) { return returned(PyObject_CallNoArgs(function)); }

  static py::object call(PyObject *function, py::object const &argument) {
    return returned(PyObject_CallOneArg(function, argument.ptr()));
  }

  static py::object returned(PyObject *value) {
    if (value == nullptr) {
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(value);
  }

  static bool truth(py::object const &value) { return PyObject_IsTrue(value.ptr()) != 0; }

  py::object watchers_, grad_enabled_, current_device_, raw_stream_, allocate_, written_, refuse_, in_torch_, last_,
      byte_;
  Reader reader_;
  std::unordered_multimap<uint64_t, std::shared_ptr<Entry>> entries_;
};

}  // namespace
