// Programs: a specification and the layouts of a list of gradients, compiled into jobs, with
// the memory they need. Torch-free; the caller supplies threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "signal.h"
#include "spec_text.h"

namespace specgrad {

struct TensorLayout {
  DType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  bool operator==(const TensorLayout& other) const {
    return dtype == other.dtype && sizes == other.sizes && strides == other.strides;
  }
};

// Runs task(slot) for slot = 0 .. slots - 1, possibly at once.
using RunSlots = std::function<void(int slots, const std::function<void(int)>& task)>;

class Program {
 public:
  // Throws std::invalid_argument when a layout cannot be filtered.
  static std::unique_ptr<Program> build(const std::string& spec_text,
                                        const std::vector<TensorLayout>& layouts);
  virtual ~Program() = default;

  // Whether this program was built for exactly these arguments.
  virtual bool matches(const std::string& spec_text,
                       const std::vector<TensorLayout>& layouts) const = 0;

  // Throws std::invalid_argument, with nothing written, when tensors overlap or when a
  // non-finite value is to be refused.
  virtual void check(const std::vector<void*>& data) const = 0;

  virtual void run(const std::vector<void*>& data, int threads, const RunSlots& run_slots) = 0;
};

}  // namespace specgrad
