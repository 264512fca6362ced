// Programs: a specification and the layouts of a list of gradients, compiled into jobs. They may
// be shared between threads; the caller supplies threads and memory. Torch-free.
#pragma once

#include <cstdint>
#include <cstdlib>
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

  uint64_t hash() const {
    uint64_t result = 1469598103934665603u;
    for (int64_t word : words_) result = (result ^ static_cast<uint64_t>(word)) * 1099511628211u;
    return result;
  }

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

// Memory that grows to what was once needed and is then kept.
class Buffer {
 public:
  // 64-byte aligned.
  void* at_least(int64_t bytes);
  int64_t bytes() const { return capacity_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t capacity_ = 0;
};

// What one call needs: a buffer for the signal at hand and one for scratch, for each thread.
struct Workspace {
  struct Slot {
    Buffer shared, scratch;
  };
  std::vector<Slot> slots;

  int64_t bytes() const {
    int64_t total = 0;
    for (const Slot& slot : slots) total += slot.shared.bytes() + slot.scratch.bytes();
    return total;
  }
};

// Runs task(slot) for slot = 0 .. slots - 1, possibly at once.
using RunSlots = std::function<void(int slots, const std::function<void(int)>& task)>;

class Program {
 public:
  // Throws std::invalid_argument when a layout cannot be filtered.
  static std::shared_ptr<const Program> build(const std::string& spec_text,
                                              const LayoutKey& layouts);
  virtual ~Program() = default;

  // Of its tables and lists.
  virtual int64_t bytes() const = 0;

  // Throws std::invalid_argument, with nothing written, when tensors overlap or when a
  // non-finite value is to be refused.
  virtual void check(const std::vector<void*>& data) const = 0;

  virtual void run(const std::vector<void*>& data, int threads, const RunSlots& run_slots,
                   Workspace& workspace) const = 0;
};

}  // namespace specgrad
