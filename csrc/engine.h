// Programs: the designs of a plan and the layouts of a list of gradients, compiled into jobs. They
// may be shared between threads; the caller supplies threads and memory. Torch-free.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "design.h"
#include "filters.h"
#include "plans.h"
#include "signal.h"

namespace specgrad {

// Memory that grows to what was once needed and is then kept.
class Buffer {
 public:
  // 64-byte aligned.
  void* at_least(int64_t bytes) {
    if (bytes > capacity_) {
      const int64_t rounded = (bytes + 63) / 64 * 64;
      memory_.reset(std::aligned_alloc(64, static_cast<size_t>(rounded)));
      capacity_ = memory_ ? rounded : 0;
      if (!memory_) throw std::bad_alloc();
    }
    return memory_.get();
  }
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
  int64_t bytes = 0;             // from the first that it can touch to the last; 0 when it is empty
  int64_t filter = -1;           // -1: left alone
  std::vector<int64_t> offsets;  // of the signals in it, in bytes
  Layout signal;
};

// What became of a call. Only `done` has written anything.
enum class Outcome { done, unknown_layout, interleaved, negated };

class Program {
 public:
  Program(const std::vector<FilterDesign>& designs, std::vector<TensorPlan> tensors)
      : tensors_(std::move(tensors)) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const TensorPlan& tensor = tensors_[i];
      if (tensor.filter < 0) continue;
      if (tensor.filter >= static_cast<int64_t>(designs.size())) {
        throw std::invalid_argument("specgrad: a gradient names no design");
      }
      const Filter* filter = filter_for(designs[tensor.filter], tensor);
      for (int64_t offset : std::exchange(tensors_[i].offsets, {})) {
        jobs_.push_back({filter, &tensor.signal, i, offset});
      }
    }
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return a.filter->cost > b.filter->cost;
    });
    for (const Job& job : jobs_) total_cost_ += job.filter->cost;
    // Short jobs are taken together: neighbours in memory stay with one thread.
    for (size_t i = 0; i < jobs_.size();) {
      batches_.push_back(i);
      for (double cost = 0; i < jobs_.size() && cost < kWorthTaking; ++i) {
        cost += jobs_[i].filter->cost;
      }
    }
    batches_.push_back(jobs_.size());
  }

  Program(const Program&) = delete;  // jobs point into it

  // Of its tables and lists.
  int64_t bytes() const {
    int64_t total = bytes_in(jobs_, tensors_);
    for (const auto& [key, filter] : filters_) total += filter.table_bytes;
    return total;
  }

  // Interleaved tensors lie within each other's extents; whether they share memory is not decided
  // here: `disjoint` says that it was, and the places are remembered.
  Outcome run(const std::vector<void*>& data, bool disjoint, int threads, const RunSlots& run_slots,
              Workspace& workspace) const {
    if (!known_disjoint(data, disjoint)) return Outcome::interleaved;
    const int slots = total_cost_ < kWorthAThread ? 1 : std::max(threads, 1);
    if (static_cast<int>(workspace.slots.size()) < slots) workspace.slots.resize(slots);
    size_t large = 0;  // each of them a batch of its own
    while (slots > 1 && large < jobs_.size() && is_large(jobs_[large], slots)) {
      run_spread_out(jobs_[large++], data, slots, run_slots, workspace);
    }
    std::atomic<size_t> next{large};
    const auto take_jobs = [&](int slot) {
      for (size_t batch = next++; batch + 1 < batches_.size(); batch = next++) {
        for (size_t i = batches_[batch]; i < batches_[batch + 1]; ++i) {
          run_alone(jobs_[i], data, workspace.slots[slot]);
        }
      }
    };
    if (slots == 1) {
      take_jobs(0);
    } else if (large < jobs_.size()) {
      run_slots(slots, take_jobs);
    }
    return Outcome::done;
  }

 private:
  struct Job {
    const Filter* filter;
    const Layout* layout;
    size_t tensor;
    int64_t offset;  // bytes from the tensor's start: an entry of its stack
  };

  // In the units of the cost model, some 50 microseconds: below it, waking a thread costs more
  // than it saves.
  static constexpr double kWorthAThread = 300000;
  static constexpr double kWorthTaking = 12000;

  const Filter* filter_for(const FilterDesign& design, const TensorPlan& tensor) {
    if (design.d != tensor.signal.d || design.double_precision != (tensor.dtype == DType::f64)) {
      throw std::invalid_argument("specgrad: a design is for another gradient");
    }
    const bool direct = tensor.signal.contiguous() && element_size(tensor.dtype) >= 4;
    Filter& filter = filters_[{tensor.filter, direct}];
    if (filter.phases.empty()) filter = make_filter(design, direct);
    return &filter;
  }

  static int64_t address(const void* data) {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(data));
  }

  bool known_disjoint(const std::vector<void*>& data, bool disjoint) const {
    static thread_local std::vector<std::pair<int64_t, int64_t>> extents;  // from, to
    extents.clear();
    for (size_t i = 0; i < data.size(); ++i) {
      if (!tensors_[i].bytes) continue;
      if (!data[i]) {
        throw std::invalid_argument(
            "a gradient has no memory of its own; pass the tensors that it is made of, or "
            "backend='torch'");
      }
      extents.emplace_back(address(data[i]), address(data[i]) + tensors_[i].bytes);
    }
    std::sort(extents.begin(), extents.end());
    for (size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].first < extents[i - 1].second) {
        return known_places(data, extents.front().first, disjoint);
      }
    }
    return true;
  }

  // Slices of one tensor lie within each other's extents on every call: the places of the last
  // that were found to share nothing are remembered.
  bool known_places(const std::vector<void*>& data, int64_t first, bool disjoint) const {
    std::vector<int64_t> places;
    for (size_t i = 0; i < data.size(); ++i) {
      if (tensors_[i].bytes) places.push_back(address(data[i]) - first);
    }
    const std::lock_guard<std::mutex> lock(disjoint_mutex_);
    if (disjoint) disjoint_places_ = places;
    return places == disjoint_places_;
  }

  bool is_large(const Job& job, int slots) const {
    return job.filter->cost > 0.6 * total_cost_ / slots && job.filter->cost > kWorthAThread;
  }

  static Signal signal_of(const Job& job, const std::vector<void*>& data) {
    return {job.layout, static_cast<char*>(data[job.tensor]) + job.offset};
  }

  static void run_alone(const Job& job, const std::vector<void*>& data,
                        Workspace::Slot& slot) {
    const Filter& filter = *job.filter;
    const Signal signal = signal_of(job, data);
    void* shared = slot.shared.at_least(filter.memory.shared);
    void* scratch = slot.scratch.at_least(filter.memory.scratch);
    for (const Phase& phase : filter.phases) phase.run({0, phase.tasks, signal, shared, scratch});
  }

  static void run_spread_out(const Job& job, const std::vector<void*>& data, int slots,
                             const RunSlots& run_slots, Workspace& workspace) {
    const Filter& filter = *job.filter;
    const Signal signal = signal_of(job, data);
    void* shared = workspace.slots[0].shared.at_least(filter.memory.shared);
    for (const Phase& phase : filter.phases) {
      // A few pieces a thread even out what other programs take of a core.
      const int64_t piece = std::max<int64_t>(1, phase.tasks / (4 * slots));
      std::atomic<int64_t> next{0};
      const auto take_tasks = [&](int slot) {
        void* scratch = workspace.slots[slot].scratch.at_least(filter.memory.scratch);
        for (int64_t a = next.fetch_add(piece); a < phase.tasks; a = next.fetch_add(piece)) {
          phase.run({a, std::min(a + piece, phase.tasks), signal, shared, scratch});
        }
      };
      if (phase.tasks == 1) {
        take_tasks(0);
      } else {
        run_slots(slots, take_tasks);
      }
    }
  }

  std::vector<TensorPlan> tensors_;
  std::map<std::pair<int64_t, bool>, Filter> filters_;  // by design and `direct`
  std::vector<Job> jobs_;
  std::vector<size_t> batches_;  // where in jobs_ each starts, and the end
  double total_cost_ = 0;
  mutable std::mutex disjoint_mutex_;
  mutable std::vector<int64_t> disjoint_places_;
};

}  // namespace specgrad
