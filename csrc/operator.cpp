// The native backend as Python calls it, through torch's stable ABI, so that one build runs with
// later versions of torch. What it cannot decide it leaves to the caller, with nothing written.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <functional>
#include <iterator>
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
#include "workspace.h"

namespace specgrad {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The dtype of a gradient, whose layout is appended; throws when it is none that is filtered.
DType append_layout(LayoutKey& layouts, AtenTensorHandle grad) {
  static const int32_t dtypes[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
                                   aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16()};
  int32_t dtype = 0;
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(grad, &dtype));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(grad, &dims));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(grad, &sizes));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(grad, &strides));
  const int32_t* found = std::find(std::begin(dtypes), std::end(dtypes), dtype);
  if (found == std::end(dtypes)) {
    throw std::invalid_argument("specgrad: a gradient is not of a floating dtype");
  }
  const DType own = static_cast<DType>(found - dtypes);
  layouts.begin_tensor(own, static_cast<size_t>(dims));
  layouts.append(sizes, sizes + dims);
  layouts.append(strides, strides + dims);
  return own;
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

  void add(int64_t plan, const LayoutKey& layouts, std::shared_ptr<const Program> program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t bytes = program->bytes();
    entries_.push_front({plan, layouts, std::move(program), bytes});
    bytes_ += bytes;
    while (entries_.size() > kCapacity || (bytes_ > kCapacityBytes && entries_.size() > 1)) {
      bytes_ -= entries_.back().bytes;
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
    int64_t bytes;
  };
  static constexpr size_t kCapacity = 256;
  static constexpr int64_t kCapacityBytes = int64_t{64} << 20;
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

// The gradients of a call, unwrapped only as far as a call needs: a vector of Tensor costs as much
// again as everything else that a call does.
class Gradients {
 public:
  explicit Gradients(StableListHandle list) : list_(list) {
    size_t size = 0;
    STABLE_TORCH_ERROR_CODE_CHECK(torch_list_size(list, &size));
    handles_.reserve(size);
    for (size_t i = 0; i < size; ++i) {
      StableIValue item;
      STABLE_TORCH_ERROR_CODE_CHECK(torch_list_get_item(list, i, &item));
      handles_.push_back(torch::stable::detail::to<AtenTensorHandle>(item));
    }
  }
  ~Gradients() {
    for (AtenTensorHandle handle : handles_) aoti_torch_delete_tensor_object(handle);
    torch_delete_list(list_);
  }
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  void append_layouts(LayoutKey& layouts) const {
    for (AtenTensorHandle handle : handles_) append_layout(layouts, handle);
  }

  void append_data(std::vector<void*>& data) const {
    for (AtenTensorHandle handle : handles_) {
      void* pointer = nullptr;
      STABLE_TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(handle, &pointer));
      data.push_back(pointer);
    }
  }

 private:
  StableListHandle list_;
  std::vector<AtenTensorHandle> handles_;
};

// Filters in place; an Outcome other than `done` says why not.
Outcome run(const Gradients& grads, int64_t plan, bool disjoint) {
  static thread_local LayoutKey layouts;
  static thread_local std::vector<void*> data;
  layouts.clear();
  data.clear();
  grads.append_layouts(layouts);
  const std::shared_ptr<const Program> program = programs().find(plan, layouts);
  if (!program) return Outcome::unknown_layout;
  grads.append_data(data);
  std::unique_ptr<Workspace> workspace = workspaces().borrow();
  const int threads = static_cast<int>(torch::stable::get_num_threads());
  const Outcome outcome = program->run(data, disjoint, threads, run_slots, *workspace);
  workspaces().give_back(std::move(workspace));
  return outcome;
}

void run_boxed(StableIValue* stack, uint64_t, uint64_t) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  const Gradients grads(to<StableListHandle>(stack[0]));
  stack[0] = from(static_cast<int64_t>(run(grads, to<int64_t>(stack[1]), to<bool>(stack[2]))));
}

// Takes numbers from the front of a list.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& words) : words_(words) {}
  int64_t next() { return *take(1); }
  const int64_t* take(int64_t count) {
    if (count < 0 || count > static_cast<int64_t>(words_.size()) - at_) {
      throw std::invalid_argument("specgrad: a plan holds fewer numbers than it says");
    }
    at_ += count;
    return words_.data() + at_ - count;
  }
  bool ended() const { return at_ == static_cast<int64_t>(words_.size()); }

 private:
  const std::vector<int64_t>& words_;
  int64_t at_ = 0;
};

Layout read_layout(Reader& words, DType dtype) {
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

std::vector<FilterDesign> read_designs(const std::vector<int64_t>& integers, const Tensor& values) {
  if (values.scalar_type() != ScalarType::Double || !values.is_contiguous()) {
    throw std::invalid_argument("specgrad: designs are contiguous float64 numbers");
  }
  const double* value = static_cast<const double*>(values.const_data_ptr());
  const double* end = value + values.numel();
  Reader words(integers);
  std::vector<FilterDesign> designs;
  while (!words.ended()) {
    designs.push_back(FilterDesign::read(words.take(FilterDesign::kIntegers), value, end));
  }
  return designs;
}

// Adds the program of a plan for the layouts of `grads`. `tensors` has for each its filter, its
// bytes, the number, sizes and strides of its stack's dimensions, and twice a number of merged
// dimensions, their sizes and strides: of the whole and of one signal.
void load(std::vector<Tensor> grads, int64_t plan, std::vector<int64_t> designs, Tensor values,
          std::vector<int64_t> tensors, bool refuse_nonfinite) {
  Reader words(tensors);
  std::vector<TensorPlan> plans;
  LayoutKey layouts;
  for (const Tensor& grad : grads) {
    TensorPlan tensor;
    tensor.dtype = append_layout(layouts, grad.get());
    tensor.filter = words.next();
    tensor.bytes = words.next();
    const int64_t dims = words.next();
    const int64_t *sizes = words.take(dims), *strides = words.take(dims);
    tensor.stack_sizes.assign(sizes, sizes + dims);
    tensor.stack_strides.assign(strides, strides + dims);
    tensor.whole = read_layout(words, tensor.dtype);
    tensor.signal = read_layout(words, tensor.dtype);
    plans.push_back(std::move(tensor));
  }
  programs().add(plan, layouts,
                 Program::build(read_designs(designs, values), std::move(plans), refuse_nonfinite));
}

// Bytes that one signal needs besides its own.
int64_t workspace_bytes(std::vector<int64_t> designs, Tensor values, bool direct) {
  int64_t bytes = 0;
  for (const FilterDesign& design : read_designs(designs, values)) {
    const int64_t lanes = vector_bytes(chosen_isa()) / (design.double_precision ? 8 : 4);
    const int64_t numbers = shared_of(design, static_cast<int>(lanes), direct) +
                            scratch_of(design, static_cast<int>(lanes));
    bytes += numbers * (design.double_precision ? 8 : 4);
  }
  return bytes;
}

std::string instruction_set() { return isa_name(chosen_isa()); }
int64_t bytes_a_vector() { return vector_bytes(chosen_isa()); }

std::tuple<int64_t, int64_t> release_memory() {
  return {programs().release(), workspaces().release()};
}

}  // namespace

STABLE_TORCH_LIBRARY(specgrad_native, m) {
  m.def("run(Tensor(a!)[] grads, int plan, bool disjoint=False) -> int");
  m.def(
      "load(Tensor[] grads, int plan, int[] designs, Tensor values, int[] tensors, "
      "bool refuse_nonfinite) -> ()");
  m.def("workspace_bytes(int[] designs, Tensor values, bool direct) -> int");
  m.def("instruction_set() -> str");
  m.def("bytes_a_vector() -> int");
  m.def("release_memory() -> (int programs, int workspaces)");
}

STABLE_TORCH_LIBRARY_IMPL(specgrad_native, CPU, m) {
  m.impl("run", &run_boxed);
  m.impl("load", TORCH_BOX(&load));
  m.impl("workspace_bytes", TORCH_BOX(&workspace_bytes));
}

// The caller has seen that no gradient requires grad, which is all that torch would look for there.
STABLE_TORCH_LIBRARY_IMPL(specgrad_native, AutogradCPU, m) {
  m.impl("run", &run_boxed);
}

STABLE_TORCH_LIBRARY_IMPL(specgrad_native, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&instruction_set));
  m.impl("bytes_a_vector", TORCH_BOX(&bytes_a_vector));
  m.impl("release_memory", TORCH_BOX(&release_memory));
}

}  // namespace specgrad
