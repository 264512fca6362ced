// What is done to one signal, as phases of independent tasks. A phase starts when the one
// before it has ended; the result does not depend on how tasks are spread over threads.
#pragma once

#include <cstdint>
#include <memory>

#include "design.h"
#include "kernels.h"
#include "plans.h"

namespace specgrad {

// Bytes, once a signal and once a thread.
struct Memory {
  int64_t shared = 0;
  int64_t scratch = 0;
};

class Filter {
 public:
  Filter(Memory memory, double cost) : memory_(memory), cost_(cost) {}
  virtual ~Filter() = default;
  virtual int phases() const = 0;
  virtual int64_t tasks(int phase) const = 0;
  // `shared` is one buffer a signal, `scratch` one a thread, both 64-byte aligned.
  virtual void run(int phase, int64_t begin, int64_t end, const Signal& signal, void* shared,
                   void* scratch) const = 0;
  virtual int64_t table_bytes() const = 0;
  Memory memory() const { return memory_; }
  double cost() const { return cost_; }

 private:
  Memory memory_;
  double cost_;
};

// `direct` says whether the gradient's own memory can be worked on.
std::unique_ptr<Filter> make_filter(const FilterDesign& design, bool direct);

}  // namespace specgrad
