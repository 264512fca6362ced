// Programs: filter designs and the layouts of a list of gradients, compiled into jobs. A program may
// be shared between threads; the caller supplies threads and memory. Torch-free.
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
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "filters.h"
#include "interface.h"
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

// Memory of one call: for each thread a buffer for its signal and one for scratch, and the lists
// that describe the gradients.
struct Workspace {
  struct Slot {
    Buffer shared, scratch;
  };
  std::vector<Slot> slots;
  std::string key;                                   // of the program that is looked for
  std::vector<void*> data;                           // where each gradient starts
  std::vector<std::pair<int64_t, int64_t>> extents;  // first and one-past-last byte of each

  int64_t bytes() const {
    int64_t total = 0;
    for (const Slot& slot : slots) total += slot.shared.bytes() + slot.scratch.bytes();
    return total;
  }
};

// Runs task(slot) for slot = 0 .. slots - 1, possibly at once.
using RunSlots = std::function<void(int slots, const std::function<void(int)>& task)>;

// Appends the layout of one gradient to a key, which is the spec's text and all layouts.
inline void append_layout(std::string& key, DType dtype, int64_t dims, const int64_t* sizes,
                          const int64_t* strides) {
  const int64_t head[] = {static_cast<int64_t>(dtype), dims};
  const auto append = [&](const int64_t* numbers, int64_t count) {
    key.append(reinterpret_cast<const char*>(numbers), static_cast<size_t>(count) * sizeof(int64_t));
  };
  append(head, 2);
  append(sizes, dims);
  append(strides, dims);
}

class Program {
 public:
  // `spec` is the text of the spec that the designs were made for.
  Program(std::string spec, const std::vector<FilterDesign>& designs,
          const std::vector<TensorLayout>& tensors)
      : spec_length_(spec.size()), key_(std::move(spec)) {
    tensors_.reserve(tensors.size());  // jobs point into it
    for (const TensorLayout& layout : tensors) {
      append_layout(key_, layout.dtype, static_cast<int64_t>(layout.shape.size()),
                    layout.shape.data(), layout.strides.data());
      tensors_.push_back(tensor_of(layout));
      if (layout.design < 0) continue;
      if (layout.design >= static_cast<int64_t>(designs.size())) {
        throw std::invalid_argument("specgrad: a gradient names no design");
      }
      add_jobs(filter_for(designs[layout.design], layout, tensors_.back().signal));
    }
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return a.filter->cost > b.filter->cost;
    });
    // Short jobs are taken together, so that neighbours in memory stay with one thread.
    for (size_t i = 0; i < jobs_.size();) {
      batches_.push_back(i);
      for (double cost = 0; i < jobs_.size() && cost < kWorthTaking; ++i) cost += jobs_[i].cost();
    }
    batches_.push_back(jobs_.size());
  }

  Program(const Program&) = delete;  // jobs point into it

  const std::string& key() const { return key_; }
  std::string spec() const { return key_.substr(0, spec_length_); }

  // Memory of its tables and lists.
  int64_t bytes() const {
    Spans all = spans_of(jobs_, tensors_);
    for (const auto& [key, filter] : filters_) all = all + filter.spans;
    return std::accumulate(all.begin(), all.end(), int64_t{0},
                           [](int64_t total, const Span& span) { return total + span.bytes; });
  }

  // Filters the tensors at workspace.data. Those that lie within each other's extents are
  // `interleaved`: the caller decides whether they share memory, and says so by `disjoint`.
  Outcome run(bool disjoint, int threads, const RunSlots& run_slots, Workspace& workspace) const {
    const std::vector<void*>& data = workspace.data;
    if (!known_disjoint(workspace, disjoint)) return Outcome::interleaved;
    const int slots = total_cost_ < kWorthAThread ? 1 : std::max(threads, 1);
    if (static_cast<int>(workspace.slots.size()) < slots) workspace.slots.resize(slots);
    size_t large = 0;  // each of them a batch of its own
    while (slots > 1 && large < jobs_.size() && is_large(jobs_[large], slots)) {
      run_spread_out(jobs_[large++], data, slots, run_slots, workspace);
    }
    prefetch_tables();
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
  struct Tensor {
    int64_t extent = 0;    // bytes it spans
    Layout signal;
    std::vector<int64_t> stack_sizes, stack_strides;  // strides in bytes
  };

  // Signals [first, first + count) of one tensor, filtered alike.
  struct Job {
    const Filter* filter;
    const Tensor* tensor;
    size_t index;  // of the tensor
    int64_t first, count;

    double cost() const { return filter->cost * static_cast<double>(count); }
  };

  // In the units of the cost model (design.py), of which a microsecond has some 6000: below the
  // first, waking a thread costs more than it saves.
  static constexpr double kWorthAThread = 300000;
  static constexpr double kWorthTaking = 12000;
  static constexpr size_t kPlacesKept = 16;
  static constexpr int64_t kSideBySide = 512;

  static Tensor tensor_of(const TensorLayout& layout) {
    const int64_t bytes = element_size(layout.dtype);
    Tensor tensor;
    tensor.extent = layout.extent;
    tensor.stack_sizes = layout.stack_sizes;
    for (int64_t stride : layout.stack_strides) tensor.stack_strides.push_back(stride * bytes);
    tensor.signal = Layout(layout.dtype, layout.signal_sizes, layout.signal_strides);
    return tensor;
  }

  // After other work the tables are in no cache, and kernels would wait for them line by line.
  // Those of large layers are too many, and are read as slowly as the layer itself.
  void prefetch_tables() const {
    constexpr int64_t most = 1 << 16;
    for (const auto& [key, filter] : filters_) {
      for (const Span& span : filter.spans) {
        const char* const bytes = static_cast<const char*>(span.first);
        for (int64_t i = 0; span.bytes <= most && i < span.bytes; i += 64) {
          __builtin_prefetch(bytes + i);
        }
      }
    }
  }

  const Filter* filter_for(const FilterDesign& design, const TensorLayout& tensor,
                           const Layout& signal) {
    if (design.d != signal.d || design.double_precision != (tensor.dtype == DType::f64)) {
      throw std::invalid_argument("specgrad: a design is for another gradient");
    }
    const bool direct = signal.contiguous() && element_size(tensor.dtype) >= 4;
    Filter& filter = filters_[{tensor.design, direct}];
    if (filter.phases.empty()) filter = make_filter(design, direct);
    return &filter;
  }

  // Adds jobs for all signals of the last tensor.
  void add_jobs(const Filter* filter) {
    const Tensor& tensor = tensors_.back();
    const size_t index = tensors_.size() - 1;
    const int64_t signals = product(tensor.stack_sizes);
    int64_t together = std::max<int64_t>(1, static_cast<int64_t>(kWorthTaking / filter->cost));
    // signals side by side in memory are filtered some cache lines at a time
    if (filter->takes_runs) together = ceil_div(together, kSideBySide) * kSideBySide;
    for (int64_t first = 0; first < signals; first += together) {
      jobs_.push_back({filter, &tensor, index, first, std::min(together, signals - first)});
    }
    total_cost_ += filter->cost * static_cast<double>(signals);
  }

  static int64_t address(const void* data) {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(data));
  }

  bool known_disjoint(Workspace& workspace, bool disjoint) const {
    const std::vector<void*>& data = workspace.data;
    std::vector<std::pair<int64_t, int64_t>>& extents = workspace.extents;
    extents.clear();
    for (size_t i = 0; i < data.size(); ++i) {
      if (!tensors_[i].extent) continue;
      if (!data[i]) {
        throw std::invalid_argument(
            "a gradient has no memory of its own; pass the tensors that it is made of, or "
            "backend='torch'");
      }
      extents.emplace_back(address(data[i]), address(data[i]) + tensors_[i].extent);
    }
    std::sort(extents.begin(), extents.end());
    for (size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].first < extents[i - 1].second) {
        return known_places(data, extents.front().first, disjoint);
      }
    }
    return true;
  }

  // Slices of one tensor lie within each other's extents on every call: the last places that were
  // found to share nothing are remembered.
  bool known_places(const std::vector<void*>& data, int64_t first, bool disjoint) const {
    std::vector<int64_t> places;
    for (size_t i = 0; i < data.size(); ++i) {
      if (tensors_[i].extent) places.push_back(address(data[i]) - first);
    }
    const std::lock_guard<std::mutex> lock(disjoint_mutex_);
    const auto end = disjoint_places_.end();
    if (std::find(disjoint_places_.begin(), end, places) != end) return true;
    if (!disjoint) return false;
    if (disjoint_places_.size() == kPlacesKept) disjoint_places_.erase(disjoint_places_.begin());
    disjoint_places_.push_back(std::move(places));
    return true;
  }

  bool is_large(const Job& job, int slots) const {
    return job.filter->cost > 0.6 * total_cost_ / slots && job.filter->cost > kWorthAThread;
  }

  static Signal signal_of(const Job& job, int64_t number, const std::vector<void*>& data) {
    int64_t offset = 0;
    for (size_t dim = job.tensor->stack_sizes.size(); dim-- > 0;) {
      const int64_t size = job.tensor->stack_sizes[dim];
      offset += (dim ? number % size : number) * job.tensor->stack_strides[dim];
      number = dim ? number / size : 0;
    }
    return {&job.tensor->signal, static_cast<char*>(data[job.index]) + offset};
  }

  static void run_alone(const Job& job, const std::vector<void*>& data, Workspace::Slot& slot) {
    const Filter& filter = *job.filter;
    void* shared = slot.shared.at_least(filter.memory.shared);
    void* scratch = slot.scratch.at_least(filter.memory.scratch);
    const int64_t inner = job.tensor->stack_sizes.back();
    for (int64_t i = 0, count; i < job.count; i += count) {
      Signal signal = signal_of(job, job.first + i, data);
      count = filter.takes_runs ? std::min(job.count - i, inner - (job.first + i) % inner) : 1;
      signal.count = count;
      signal.step = job.tensor->stack_strides.back();
      for (const Phase& phase : filter.phases) {
        phase.run({0, phase.tasks, signal, shared, scratch});
      }
    }
  }

  static void run_spread_out(const Job& job, const std::vector<void*>& data, int slots,
                             const RunSlots& run_slots, Workspace& workspace) {
    const Filter& filter = *job.filter;
    const Signal signal = signal_of(job, job.first, data);
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

  size_t spec_length_;
  std::string key_;
  std::vector<Tensor> tensors_;
  std::map<std::pair<int64_t, bool>, Filter> filters_;  // by design and `direct`
  std::vector<Job> jobs_;
  std::vector<size_t> batches_;  // where in jobs_ each starts, and the end
  double total_cost_ = 0;
  mutable std::mutex disjoint_mutex_;
  mutable std::vector<std::vector<int64_t>> disjoint_places_;
};

}  // namespace specgrad
