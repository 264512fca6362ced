// Programs: the designs of a plan and the layouts of a list of gradients, compiled into jobs. They
// may be shared between threads; the caller supplies threads and memory. Torch-free.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "design.h"
#include "signal.h"

namespace specgrad {

// The layouts of a list of gradients in one flat array, cheap to fill and to compare: for each
// tensor its dtype, its number of dimensions, its sizes, its strides.
class LayoutKey {
 public:
  void clear() { words_.clear(); }
  void append(DType dtype, int64_t dims, const int64_t* sizes, const int64_t* strides) {
    words_.push_back(static_cast<int64_t>(dtype));
    words_.push_back(dims);
    words_.insert(words_.end(), sizes, sizes + dims);
    words_.insert(words_.end(), strides, strides + dims);
  }
  bool operator==(const LayoutKey& other) const { return words_ == other.words_; }

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

// One gradient of a program, its neighbouring dimensions merged.
struct TensorPlan {
  DType dtype = DType::f32;
  int64_t bytes = 0;        // from the first that it can touch to the last; 0 when it is empty
  int64_t filter = -1;      // -1: left alone
  std::vector<int64_t> stack_sizes, stack_strides;  // of the signals in it
  Layout whole, signal;
};

// What became of a call. Only `done` has written anything.
enum class Outcome { done, unknown_layout, interleaved, nonfinite, negated };

class Program {
 public:
  static std::shared_ptr<const Program> build(std::vector<FilterDesign> designs,
                                              std::vector<TensorPlan> tensors, bool refuse_nonfinite);
  virtual ~Program() = default;

  // Of its tables and lists.
  virtual int64_t bytes() const = 0;

  // Interleaved tensors lie within each other's extents; whether they share memory is not decided
  // here: `disjoint` says that it was, and the places are remembered.
  virtual Outcome run(const std::vector<void*>& data, bool disjoint, int threads,
                      const RunSlots& run_slots, Workspace& workspace) const = 0;
};

}  // namespace specgrad
