// What is done to one signal, as phases of independent tasks. A phase starts when the one
// before it has ended; the result does not depend on how tasks are spread over threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "interface.h"
#include "plans.h"
#include "signal.h"

namespace specgrad {

// Bytes, once a signal and once a thread.
struct Memory {
  int64_t shared = 0;
  int64_t scratch = 0;
};

// Tasks [begin, end) of a phase. `shared` is one buffer a signal, `scratch` one a thread, both
// 64-byte aligned.
struct Work {
  int64_t begin, end;
  const Signal& signal;
  void *shared, *scratch;
};

struct Phase {
  int64_t tasks;
  std::function<void(const Work&)> run;
};

struct Filter {
  Memory memory;
  double cost = 0;
  std::vector<Phase> phases;
  std::shared_ptr<const void> tables;  // that the phases read
  Spans spans;                         // of the tables
  bool takes_runs = false;  // of several signals at once
};

// `direct` says whether the gradient's own memory can be worked on.
Memory memory_of(const FilterDesign& design, bool direct);
Filter make_filter(const FilterDesign& design, bool direct);

}  // namespace specgrad
