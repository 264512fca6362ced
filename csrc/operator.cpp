// Registers the CPU kernel of specgrad::filter_grads_ through torch's stable ABI, so that one
// build runs with later versions of torch.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine.h"

namespace specgrad {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

DType dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Double: return DType::f64;
    case ScalarType::BFloat16: return DType::bf16;
    case ScalarType::Half: return DType::f16;
    default: throw std::invalid_argument("specgrad: a gradient is not of a floating dtype");
  }
}

// The programs of the last specifications and layouts, most recently used first: at most 256, and
// at most 64 MiB of tables unless a single one is larger.
class ProgramCache {
 public:
  std::shared_ptr<const Program> find_or_build(const std::string& spec, const LayoutKey& layouts) {
    const uint64_t hash = layouts.hash() ^ std::hash<std::string>{}(spec);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        if (it->hash == hash && it->layouts == layouts && it->spec == spec) {
          entries_.splice(entries_.begin(), entries_, it);
          return it->program;
        }
      }
    }
    std::shared_ptr<const Program> program = Program::build(spec, layouts);
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_front({hash, spec, layouts, program, program->bytes()});
    bytes_ += entries_.front().bytes;
    while (entries_.size() > kCapacity || (bytes_ > kCapacityBytes && entries_.size() > 1)) {
      bytes_ -= entries_.back().bytes;
      entries_.pop_back();
    }
    return program;
  }

  // Forgets all; the bytes they had.
  int64_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.clear();
    return std::exchange(bytes_, 0);
  }

 private:
  struct Entry {
    uint64_t hash;
    std::string spec;
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

void filter_grads(std::vector<Tensor> grads, std::string spec) {
  static thread_local LayoutKey layouts;
  static thread_local std::vector<void*> data;
  layouts.clear();
  data.clear();
  for (const Tensor& grad : grads) {
    if (!grad.is_cpu()) throw std::invalid_argument("specgrad: a gradient is not on the CPU");
    layouts.begin_tensor(dtype_of(grad), static_cast<size_t>(grad.dim()));
    layouts.append(grad.sizes());
    layouts.append(grad.strides());
    data.push_back(grad.mutable_data_ptr());
  }
  const std::shared_ptr<const Program> program = programs().find_or_build(spec, layouts);
  program->check(data);
  std::unique_ptr<Workspace> workspace = workspaces().borrow();
  program->run(data, static_cast<int>(torch::stable::get_num_threads()), run_slots, *workspace);
  workspaces().give_back(std::move(workspace));
}

std::tuple<int64_t, int64_t> release_memory() {
  return {programs().release(), workspaces().release()};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(specgrad, m) {
  m.def("release_memory() -> (int programs, int workspaces)");
}

STABLE_TORCH_LIBRARY_IMPL(specgrad, CompositeExplicitAutograd, m) {
  m.impl("release_memory", TORCH_BOX(&release_memory));
}

STABLE_TORCH_LIBRARY_IMPL(specgrad, CPU, m) {
  m.impl("filter_grads_", TORCH_BOX(&filter_grads));
}

}  // namespace specgrad
