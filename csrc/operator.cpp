// Registers the CPU kernel of specgrad::filter_grads_ through torch's stable ABI, so that one
// build runs with later versions of torch.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
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

// Programs that are not in use, most recently used first. A program is taken out while it runs,
// so threads never share its memory.
class ProgramCache {
 public:
  std::unique_ptr<Program> take(const std::string& spec, const LayoutKey& layouts) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = idle_.begin(); it != idle_.end(); ++it) {
        if ((*it)->matches(spec, layouts)) {
          std::unique_ptr<Program> program = std::move(*it);
          spare_.splice(spare_.begin(), idle_, it);
          return program;
        }
      }
    }
    return Program::build(spec, layouts);
  }

  void put_back(std::unique_ptr<Program> program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spare_.empty()) spare_.emplace_front();
    spare_.front() = std::move(program);
    idle_.splice(idle_.begin(), spare_, spare_.begin());
    if (idle_.size() > kCapacity) idle_.pop_back();
  }

 private:
  static constexpr size_t kCapacity = 32;
  std::mutex mutex_;
  std::list<std::unique_ptr<Program>> idle_, spare_;
};

ProgramCache& cache() {
  static ProgramCache* instance = new ProgramCache;  // outlives every thread
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
  std::unique_ptr<Program> program = cache().take(spec, layouts);
  try {
    program->check(data);
  } catch (...) {
    cache().put_back(std::move(program));
    throw;
  }
  program->run(data, static_cast<int>(torch::stable::get_num_threads()), run_slots);
  cache().put_back(std::move(program));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specgrad, CPU, m) {
  m.impl("filter_grads_", TORCH_BOX(&filter_grads));
}

}  // namespace specgrad
