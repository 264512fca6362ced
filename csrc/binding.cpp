// The Python module of the native backend: torch's stable ABI, Python's limited API and DLPack, so
// that one build runs with later versions of both. What it cannot decide it leaves to the caller,
// with nothing written.

#include <Python.h>

// plain C, which torch hides with its own headers from those that keep to the stable ABI
#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#include <ATen/dlpack.h>
#pragma pop_macro("TORCH_TARGET_VERSION")

#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cache.h"
#include "cpu.h"
#include "engine.h"
#include "interface.h"

namespace specgrad {
namespace {

void run_slots(int slots, const std::function<void(int)>& task) {
  torch::stable::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) task(static_cast<int>(slot));
  });
}

// Reads a tensor's layout and address without a call of the dispatcher.
const DLPackExchangeAPI* dlpack = nullptr;

struct PythonError {};  // the exception is set already

struct Decrease {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Held = std::unique_ptr<PyObject, Decrease>;

DType dtype_of(const DLTensor& grad) {
  const DLDataType type = grad.dtype;
  if (type.code == kDLFloat && type.bits == 32) return DType::f32;
  if (type.code == kDLFloat && type.bits == 64) return DType::f64;
  if (type.code == kDLFloat && type.bits == 16) return DType::f16;
  if (type.code == kDLBfloat && type.bits == 16) return DType::bf16;
  throw std::invalid_argument("specgrad: a gradient is not of a floating dtype");
}

// Imaginary parts of conjugates are negated when they are read, and have the even strides of what
// they are part of.
bool is_negated(PyObject* grad, const DLTensor& layout) {
  for (int32_t i = 0; i < layout.ndim; ++i) {
    if (layout.strides[i] % 2) return false;
  }
  const Held answer(PyObject_CallMethod(grad, "is_neg", nullptr));
  if (!answer) throw PythonError();
  return PyObject_IsTrue(answer.get()) == 1;
}

// Appends the layouts to the key and fills the addresses; returns whether all can be read as they
// are. `grads` is a tuple.
bool read_gradients(PyObject* grads, Workspace& workspace) {
  const Py_ssize_t count = PyTuple_Size(grads);
  workspace.data.clear();
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GetItem(grads, i);
    DLTensor grad;
    if (dlpack->dltensor_from_py_object_no_sync(item, &grad)) throw PythonError();
    append_layout(workspace.key, dtype_of(grad), grad.ndim, grad.shape, grad.strides);
    workspace.data.push_back(static_cast<char*>(grad.data) + grad.byte_offset);
    if (grad.device.device_type != kDLCPU) {
      throw std::invalid_argument("specgrad: a gradient is not on the CPU");
    }
    if (is_negated(item, grad)) return false;
  }
  return true;
}

std::string text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (!text) throw PythonError();
  return std::string(text, static_cast<size_t>(size));
}

struct WithoutPython {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutPython() { PyEval_RestoreThread(state); }
};

// A Python object's attributes, by their names.
class Attributes {
 public:
  explicit Attributes(PyObject* object) : object_(object) {}

  double number(const char* name) const {
    const double value = PyFloat_AsDouble(get(name).get());
    if (PyErr_Occurred()) throw PythonError();
    return value;
  }
  std::string text(const char* name) const { return text_of(get(name).get()); }
  // Bytes of an array whose items are T.
  template <class T>
  std::vector<T> list(const char* name) const {
    const Held value = get(name);
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(value.get(), &bytes, &size)) throw PythonError();
    std::vector<T> numbers(static_cast<size_t>(size) / sizeof(T));
    if (size) std::memcpy(numbers.data(), bytes, numbers.size() * sizeof(T));
    return numbers;
  }

 private:
  Held get(const char* name) const {
    Held value(PyObject_GetAttrString(object_, name));
    if (!value) throw PythonError();
    return value;
  }
  PyObject* object_;
};

template <class Item>
std::vector<Item> read_items(PyObject* sequence) {
  const Held items(PySequence_Tuple(sequence));
  if (!items) throw PythonError();
  std::vector<Item> list;
  for (Py_ssize_t i = 0; i < PyTuple_Size(items.get()); ++i) {
    list.emplace_back(Attributes(PyTuple_GetItem(items.get(), i)));
  }
  return list;
}

using SharedProgram = std::shared_ptr<const Program>;
constexpr const char* kCapsule = "specgrad.Program";

Outcome run_program(const SharedProgram& given, bool disjoint, Workspace& workspace) {
  const WithoutPython released;
  const SharedProgram program = given ? given : programs().find(workspace.key);
  if (!program || program->key() != workspace.key) return Outcome::unknown_layout;
  const int threads = static_cast<int>(torch::stable::get_num_threads());
  return program->run(disjoint, threads, run_slots, workspace);
}

// run(grads, program, disjoint=False) filters in place and returns None, or returns the name of the
// Outcome that prevented it. `program` is the text of a spec, whose program is looked up, or what
// compile() returned.
PyObject* run(PyObject* const* arguments, Py_ssize_t count) {
  const Held grads(PySequence_Tuple(arguments[0]));  // alive while other threads run Python
  if (!grads) return nullptr;
  std::unique_ptr<Workspace> workspace = workspaces().borrow();
  SharedProgram given;
  if (PyUnicode_Check(arguments[1])) {
    workspace->key = text_of(arguments[1]);
  } else {
    void* pointer = PyCapsule_GetPointer(arguments[1], kCapsule);
    if (!pointer) return nullptr;
    given = *static_cast<SharedProgram*>(pointer);
    workspace->key = given->spec();
  }
  const bool disjoint = count > 2 && PyObject_IsTrue(arguments[2]) == 1;
  const Outcome outcome = read_gradients(grads.get(), *workspace)
                              ? run_program(given, disjoint, *workspace)
                              : Outcome::negated;
  workspaces().give_back(std::move(workspace));
  if (outcome == Outcome::done) Py_RETURN_NONE;
  return PyUnicode_InternFromString(kOutcomes[static_cast<int>(outcome)]);
}

// compile(spec, designs, tensors) returns a program for gradients of these layouts. It is kept for
// later calls, and whoever holds it can run it whether or not it still is.
PyObject* compile(PyObject* const* arguments, Py_ssize_t) {
  std::string spec = text_of(arguments[0]);
  const std::vector<FilterDesign> designs = read_items<FilterDesign>(arguments[1]);
  const std::vector<TensorLayout> tensors = read_items<TensorLayout>(arguments[2]);
  auto held = std::make_unique<SharedProgram>();
  {
    const WithoutPython released;
    *held = std::make_shared<const Program>(std::move(spec), designs, tensors);
    programs().add(*held);
  }
  const auto free = [](PyObject* capsule) {
    delete static_cast<SharedProgram*>(PyCapsule_GetPointer(capsule, kCapsule));
  };
  PyObject* capsule = PyCapsule_New(held.get(), kCapsule, free);
  if (capsule) held.release();
  return capsule;
}

// workspace_bytes(design, direct) returns the bytes that one signal needs besides its own.
PyObject* workspace_bytes(PyObject* const* arguments, Py_ssize_t) {
  const FilterDesign design{Attributes(arguments[0])};
  const Memory memory = memory_of(design, PyObject_IsTrue(arguments[1]) == 1);
  return PyLong_FromLongLong(memory.shared + memory.scratch);
}

// set_cache_limits(programs, bytes)
PyObject* set_cache_limits(PyObject* const* arguments, Py_ssize_t) {
  const int64_t most = PyLong_AsLongLong(arguments[0]), bytes = PyLong_AsLongLong(arguments[1]);
  if (PyErr_Occurred()) return nullptr;
  programs().set_limits(most, bytes);
  Py_RETURN_NONE;
}

// release_memory() returns the bytes of programs and of workspaces that were freed.
PyObject* release_memory(PyObject* const*, Py_ssize_t) {
  return Py_BuildValue("LL", static_cast<long long>(programs().release()),
                       static_cast<long long>(workspaces().release()));
}

// instruction_set() returns its name, the bytes of its vectors, and the names of all that run here.
PyObject* instruction_set(PyObject* const*, Py_ssize_t) {
  return Py_BuildValue("sis", isa_name(chosen_isa()), vector_bytes(chosen_isa()),
                       runnable_isas().c_str());
}

// A function as Python calls it: the number of its arguments is checked, C++ exceptions become
// Python's.
template <PyObject* (*Function)(PyObject* const*, Py_ssize_t), int Fewest, int Most>
PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    if (count < Fewest || count > Most) {
      throw std::invalid_argument("specgrad: wrong number of arguments");
    }
    return Function(arguments, count);
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <PyObject* (*Function)(PyObject* const*, Py_ssize_t), int Fewest, int Most = Fewest>
PyMethodDef method(const char* name) {
  void* const function = reinterpret_cast<void*>(&call<Function, Fewest, Most>);
  return {name, reinterpret_cast<PyCFunction>(function), METH_FASTCALL, nullptr};
}

}  // namespace
}  // namespace specgrad

PyMODINIT_FUNC PyInit__kernels() {
  using namespace specgrad;
  static PyMethodDef methods[] = {method<run, 2, 3>("run"),
                                  method<compile, 3>("compile"),
                                  method<workspace_bytes, 2>("workspace_bytes"),
                                  method<set_cache_limits, 2>("set_cache_limits"),
                                  method<release_memory, 0>("release_memory"),
                                  method<instruction_set, 0>("instruction_set"),
                                  {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", nullptr, -1, methods,
                               nullptr,               nullptr,    nullptr, nullptr};
  const Held torch(PyImport_ImportModule("torch"));
  const Held tensor(torch ? PyObject_GetAttrString(torch.get(), "Tensor") : nullptr);
  const Held capsule(
      tensor ? PyObject_GetAttrString(tensor.get(), "__dlpack_c_exchange_api__") : nullptr);
  if (!capsule) return nullptr;
  dlpack = static_cast<const DLPackExchangeAPI*>(
      PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  if (!dlpack) return nullptr;
  if (dlpack->header.version.major != DLPACK_MAJOR_VERSION) {
    PyErr_SetString(PyExc_ImportError, "this torch speaks another version of DLPack");
    return nullptr;
  }
  return PyModule_Create(&module);
}
