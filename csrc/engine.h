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

// The layouts of a list of gradients in one flat array, cheap to fill and to compare: for each
// tensor its dtype, its number of dimensions, its sizes, its strides.
class LayoutKey {
 public:
  void clear() { words_.clear(); }
  void begin_tensor(DType dtype, size_t dims) {
    words_.push_back(static_cast<int64_t>(dtype));
    words_.push_back(static_cast<int64_t>(dims));
  }
  template <class Range>
  void append(const Range& values) {
    words_.insert(words_.end(), values.begin(), values.end());
  }
  bool operator==(const LayoutKey& other) const { return words_ == other.words_; }

  struct Tensor {
    DType dtype;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> result;
    for (auto at = words_.begin(); at != words_.end();) {
      const DType dtype = static_cast<DType>(at[0]);
      const int64_t dims = at[1];
      at += 2;
      result.push_back({dtype, {at, at + dims}, {at + dims, at + 2 * dims}});
      at += 2 * dims;
    }
    return result;
  }

 private:
  std::vector<int64_t> words_;
};

// Runs task(slot) for slot = 0 .. slots - 1, possibly at once.
using RunSlots = std::function<void(int slots, const std::function<void(int)>& task)>;

class Program {
 public:
  // Throws std::invalid_argument when a layout cannot be filtered.
  static std::unique_ptr<Program> build(const std::string& spec_text,
                                        const LayoutKey& layouts);
  virtual ~Program() = default;

  // Whether this program was built for exactly these arguments.
  virtual bool matches(const std::string& spec_text, const LayoutKey& layouts) const = 0;

  // Throws std::invalid_argument, with nothing written, when tensors overlap or when a
  // non-finite value is to be refused.
  virtual void check(const std::vector<void*>& data) const = 0;

  virtual void run(const std::vector<void*>& data, int threads, const RunSlots& run_slots) = 0;
};

}  // namespace specgrad
