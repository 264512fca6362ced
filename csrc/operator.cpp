// The native backend as Python calls it: torch's stable ABI, Python's limited API and DLPack, so that
// one build runs with later versions of both. What it cannot decide it leaves to the caller, with
// nothing written.

#include <Python.h>

// plain C, which torch hides with its own headers from those that keep to the stable ABI
#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#include <ATen/dlpack.h>
#pragma pop_macro("TORCH_TARGET_VERSION")

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu.h"
#include "engine.h"

namespace specgrad {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The layouts of a list of gradients in one flat array, cheap to fill and to compare: for each
// tensor its dtype, its number of dimensions, its sizes, its strides.
using LayoutKey = std::vector<int64_t>;

void append_layout(LayoutKey& key, DType dtype, int64_t dims, const int64_t* sizes,
                   const int64_t* strides) {
  key.push_back(static_cast<int64_t>(dtype));
  key.push_back(dims);
  key.insert(key.end(), sizes, sizes + dims);
  key.insert(key.end(), strides, strides + dims);
}

// The programs of plans for the layouts they met, most recently used first: at most 256, and at
// most 64 MiB of tables unless a single one is larger.
class ProgramCache {
 public:
  std::shared_ptr<const Program> find(int64_t plan, const LayoutKey& layouts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->plan == plan && it->layouts == layouts) {
        if (it != entries_.begin()) entries_.splice(entries_.begin(), entries_, it);
        return it->program;
      }
    }
    return nullptr;
  }

  void add(int64_t plan, LayoutKey layouts, std::shared_ptr<const Program> program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_ += program->bytes();
    entries_.push_front({plan, std::move(layouts), std::move(program)});
    while (entries_.size() > 256 || (bytes_ > int64_t{64} << 20 && entries_.size() > 1)) {
      bytes_ -= entries_.back().program->bytes();
      entries_.pop_back();
    }
  }

  // Forgets all; the bytes they had.
  int64_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.clear();
    return std::exchange(bytes_, 0);
  }

 private:
  struct Entry {
    int64_t plan;
    LayoutKey layouts;
    std::shared_ptr<const Program> program;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
  int64_t bytes_ = 0;
};

// Workspaces that no thread is using; one is borrowed for the length of a call.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> borrow() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }

  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

  // Frees the idle ones; the bytes they had.
  int64_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t bytes = 0;
    for (const std::unique_ptr<Workspace>& workspace : idle_) bytes += workspace->bytes();
    idle_.clear();
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

// Never destroyed: threads may still run when the process ends.
ProgramCache& programs() {
  static ProgramCache* instance = new ProgramCache;
  return *instance;
}

WorkspacePool& workspaces() {
  static WorkspacePool* instance = new WorkspacePool;
  return *instance;
}

void run_slots(int slots, const std::function<void(int)>& task) {
  torch::stable::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) task(static_cast<int>(slot));
  });
}

// How a tensor tells its layout and where it lies, without a call of the dispatcher for each.
const DLPackExchangeAPI* dlpack = nullptr;

struct PythonError {};  // one that Python has been told of already

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

// Appends what a tuple of gradients says; whether they can be read as they are.
bool read_gradients(PyObject* grads, LayoutKey& layouts, std::vector<void*>& data) {
  const Py_ssize_t count = PyTuple_Size(grads);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GetItem(grads, i);
    DLTensor grad;
    if (dlpack->dltensor_from_py_object_no_sync(item, &grad)) throw PythonError();
    append_layout(layouts, dtype_of(grad), grad.ndim, grad.shape, grad.strides);
    data.push_back(static_cast<char*>(grad.data) + grad.byte_offset);
    if (grad.device.device_type != kDLCPU) {
      throw std::invalid_argument("specgrad: a gradient is not on the CPU");
    }
    if (is_negated(item, grad)) return false;
  }
  return true;
}

Outcome run(const LayoutKey& layouts, const std::vector<void*>& data, int64_t plan, bool disjoint) {
  const std::shared_ptr<const Program> program = programs().find(plan, layouts);
  if (!program) return Outcome::unknown_layout;
  std::unique_ptr<Workspace> workspace = workspaces().borrow();
  const int threads = static_cast<int>(torch::stable::get_num_threads());
  const Outcome outcome = program->run(data, disjoint, threads, run_slots, *workspace);
  workspaces().give_back(std::move(workspace));
  return outcome;
}

struct WithoutPython {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutPython() { PyEval_RestoreThread(state); }
};

// run(grads, plan, disjoint=False): filters in place; an Outcome other than `done` says why not.
PyObject* run_from_python(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    if (count < 2 || count > 3) throw std::invalid_argument("specgrad: run takes 2 or 3 arguments");
    static thread_local LayoutKey layouts;
    static thread_local std::vector<void*> data;
    layouts.clear();
    data.clear();
    const Held grads(PySequence_Tuple(arguments[0]));  // alive while other threads run Python
    if (!grads) return nullptr;
    const int64_t plan = PyLong_AsLongLong(arguments[1]);
    if (PyErr_Occurred()) return nullptr;
    Outcome outcome = Outcome::negated;
    if (read_gradients(grads.get(), layouts, data)) {
      const WithoutPython released;
      outcome = run(layouts, data, plan, count == 3 && arguments[2] == Py_True);
    }
    return PyLong_FromLong(static_cast<long>(outcome));
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

// Takes numbers from the front of a list.
template <class Number>
class Reader {
 public:
  Reader(const Number* first, int64_t count) : at_(first), end_(first + count) {}
  int64_t next() { return static_cast<int64_t>(*take(1)); }
  const Number* take(int64_t count) {
    if (count < 0 || count > end_ - at_) {
      throw std::invalid_argument("specgrad: a plan holds fewer numbers than it says");
    }
    at_ += count;
    return at_ - count;
  }
  bool ended() const { return at_ == end_; }

 private:
  const Number *at_, *end_;
};

Layout read_layout(Reader<int64_t>& words, DType dtype) {
  Layout layout;
  layout.dtype = dtype;
  layout.d = 1;
  layout.dims = static_cast<int>(words.next());
  if (layout.dims < 1 || layout.dims > kMaxDims) {
    throw std::invalid_argument("specgrad: a gradient has too many dimensions");
  }
  const int64_t *sizes = words.take(layout.dims), *strides = words.take(layout.dims);
  for (int i = 0; i < layout.dims; ++i) {
    layout.sizes[i] = sizes[i];
    layout.strides[i] = strides[i];
    layout.d *= sizes[i];
  }
  return layout;
}

// Of each design its strategy, precision, number of samples, hop, width, boundary, whether it
// removes the mean, and cost, then its taps, the radices of both transforms and its gains, all of
// them after their number.
std::vector<FilterDesign> read_designs(const Tensor& numbers) {
  if (numbers.scalar_type() != ScalarType::Double || !numbers.is_contiguous()) {
    throw std::invalid_argument("specgrad: designs are contiguous float64 numbers");
  }
  Reader<double> words(static_cast<const double*>(numbers.const_data_ptr()), numbers.numel());
  const auto read_list = [&](auto& list) {
    const int64_t count = words.next();
    const double* first = words.take(count);
    list.assign(first, first + count);
  };
  std::vector<FilterDesign> designs;
  while (!words.ended()) {
    FilterDesign design;
    design.strategy = static_cast<Strategy>(words.next());
    design.double_precision = words.next() != 0;
    design.d = words.next();
    design.hop = static_cast<int>(words.next());
    design.width = static_cast<int>(words.next());
    design.boundary = static_cast<Boundary>(words.next());
    design.removes_mean = words.next() != 0;
    design.cost = *words.take(1);
    read_list(design.taps);
    read_list(design.down);
    read_list(design.along);
    read_list(design.gains);
    designs.push_back(std::move(design));
  }
  return designs;
}

// Adds the program of a plan for a list of gradients. `tensors` has for each its dtype, its number
// of dimensions, its sizes and strides, its filter, its bytes, how many signals it holds and where
// they start, and the number of merged dimensions of one signal, their sizes and strides.
void load(int64_t plan, Tensor designs, std::vector<int64_t> tensors) {
  Reader<int64_t> words(tensors.data(), static_cast<int64_t>(tensors.size()));
  std::vector<TensorPlan> plans;
  LayoutKey layouts;
  while (!words.ended()) {
    TensorPlan tensor;
    tensor.dtype = static_cast<DType>(words.next());
    const int64_t dims = words.next();
    const int64_t *sizes = words.take(dims), *strides = words.take(dims);
    append_layout(layouts, tensor.dtype, dims, sizes, strides);
    tensor.filter = words.next();
    tensor.bytes = words.next();
    const int64_t signals = words.next(), *starts = words.take(signals);
    tensor.offsets.assign(starts, starts + signals);
    tensor.signal = read_layout(words, tensor.dtype);
    plans.push_back(std::move(tensor));
  }
  programs().add(plan, std::move(layouts),
                 std::make_shared<const Program>(read_designs(designs), std::move(plans)));
}

// Bytes that one signal needs besides its own.
int64_t workspace_bytes(Tensor design, bool direct) {
  const Memory memory = memory_of(read_designs(design).at(0), direct);
  return memory.shared + memory.scratch;
}

std::string instruction_set() { return isa_name(chosen_isa()); }
int64_t bytes_a_vector() { return vector_bytes(chosen_isa()); }

std::tuple<int64_t, int64_t> release_memory() {
  return {programs().release(), workspaces().release()};
}

}  // namespace

STABLE_TORCH_LIBRARY(specgrad_native, m) {
  m.def("load(int plan, Tensor designs, int[] tensors) -> ()");
  m.def("workspace_bytes(Tensor design, bool direct) -> int");
  m.def("instruction_set() -> str");
  m.def("bytes_a_vector() -> int");
  m.def("release_memory() -> (int programs, int workspaces)");
}

STABLE_TORCH_LIBRARY_IMPL(specgrad_native, CPU, m) {
  m.impl("load", TORCH_BOX(&load));
  m.impl("workspace_bytes", TORCH_BOX(&workspace_bytes));
}

STABLE_TORCH_LIBRARY_IMPL(specgrad_native, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&instruction_set));
  m.impl("bytes_a_vector", TORCH_BOX(&bytes_a_vector));
  m.impl("release_memory", TORCH_BOX(&release_memory));
}

}  // namespace specgrad

PyMODINIT_FUNC PyInit__kernels() {
  using specgrad::dlpack;
  static PyMethodDef methods[] = {
      {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&specgrad::run_from_python)),
       METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", nullptr, -1, methods,
                               nullptr,               nullptr,    nullptr, nullptr};
  const specgrad::Held torch(PyImport_ImportModule("torch"));
  const specgrad::Held tensor(torch ? PyObject_GetAttrString(torch.get(), "Tensor") : nullptr);
  const specgrad::Held capsule(
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
