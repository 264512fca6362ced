#include "engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <tuple>

#include "filters.h"
#include "kernels.h"

namespace specgrad {
namespace {

// Byte offsets of the signals of a stack.
std::vector<int64_t> signal_offsets(const TensorPlan& tensor) {
  std::vector<int64_t> offsets{0};
  const int64_t bytes = element_size(tensor.dtype);
  for (size_t i = 0; i < tensor.stack_sizes.size(); ++i) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * static_cast<size_t>(tensor.stack_sizes[i]));
    for (int64_t offset : offsets) {
      for (int64_t j = 0; j < tensor.stack_sizes[i]; ++j) {
        next.push_back(offset + j * tensor.stack_strides[i] * bytes);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

struct Job {
  const Filter* filter;
  const Layout* layout;
  size_t tensor;
  int64_t offset;  // bytes from the tensor's start: an entry of its stack
};

class JobList final : public Program {
 public:
  JobList(std::vector<FilterDesign> designs, std::vector<TensorPlan> tensors,
          bool refuse_nonfinite)
      : tensors_(std::move(tensors)), refuse_nonfinite_(refuse_nonfinite) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const TensorPlan& tensor = tensors_[i];
      if (tensor.filter < 0) continue;
      if (tensor.filter >= static_cast<int64_t>(designs.size())) {
        throw std::invalid_argument("specgrad: a gradient names no design");
      }
      const Filter* filter = filter_for(designs[tensor.filter], tensor);
      for (int64_t offset : signal_offsets(tensor)) {
        jobs_.push_back({filter, &tensor.signal, i, offset});
      }
    }
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return a.filter->cost() > b.filter->cost();
    });
    for (const Job& job : jobs_) total_cost_ += job.filter->cost();
    // Short jobs are taken together: neighbours in memory stay with one thread.
    for (size_t i = 0; i < jobs_.size();) {
      batches_.push_back(i);
      for (double cost = 0; i < jobs_.size() && cost < kWorthTaking; ++i) {
        cost += jobs_[i].filter->cost();
      }
    }
    batches_.push_back(jobs_.size());
  }

  int64_t bytes() const override {
    int64_t total = bytes_in(jobs_, tensors_);
    for (const auto& [key, filter] : filters_) total += filter->table_bytes();
    return total;
  }

  Outcome run(const std::vector<void*>& data, bool disjoint, int threads,
              const RunSlots& run_slots, Workspace& workspace) const override {
    if (!known_disjoint(data, disjoint)) return Outcome::interleaved;
    if (refuse_nonfinite_ && !finite(data)) return Outcome::nonfinite;
    run_jobs(data, threads, run_slots, workspace);
    return Outcome::done;
  }

 private:
  void run_jobs(const std::vector<void*>& data, int threads, const RunSlots& run_slots,
                Workspace& workspace) const {
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
  }

  // In the units of the cost model, some 50 microseconds: below it, waking a thread costs more
  // than it saves.
  static constexpr double kWorthAThread = 300000;
  static constexpr double kWorthTaking = 12000;

  const Filter* filter_for(const FilterDesign& design, const TensorPlan& tensor) {
    if (design.d != tensor.signal.d || design.double_precision != (tensor.dtype == DType::f64)) {
      throw std::invalid_argument("specgrad: a design is for another gradient");
    }
    const bool direct = tensor.signal.contiguous() && element_size(tensor.dtype) >= 4;
    std::unique_ptr<Filter>& filter = filters_[{tensor.filter, direct}];
    if (!filter) filter = make_filter(design, direct);
    return filter.get();
  }

  struct Extent {
    int64_t start, end;
    size_t tensor;
    bool operator<(const Extent& other) const {
      return std::tie(start, end, tensor) < std::tie(other.start, other.end, other.tensor);
    }
  };

  bool known_disjoint(const std::vector<void*>& data, bool disjoint) const {
    static thread_local std::vector<Extent> extents;
    extents.clear();
    for (size_t i = 0; i < data.size(); ++i) {
      if (!tensors_[i].bytes) continue;
      if (!data[i]) {
        throw std::invalid_argument(
            "a gradient has no memory of its own; pass the tensors that it is made of, or "
            "backend='torch'");
      }
      const int64_t start = static_cast<int64_t>(reinterpret_cast<intptr_t>(data[i]));
      extents.push_back({start, start + tensors_[i].bytes, i});
    }
    std::sort(extents.begin(), extents.end());
    for (size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].start < extents[i - 1].end) return known_places(extents, disjoint);
    }
    return true;
  }

  // Slices of one tensor lie within each other's extents on every call: the places of the last
  // that were found to share nothing are remembered.
  bool known_places(const std::vector<Extent>& extents, bool disjoint) const {
    std::vector<int64_t> places;
    for (const Extent& extent : extents) {
      places.push_back(static_cast<int64_t>(extent.tensor));
      places.push_back(extent.start - extents.front().start);
    }
    const std::lock_guard<std::mutex> lock(disjoint_mutex_);
    if (disjoint) disjoint_places_ = places;
    return places == disjoint_places_;
  }

  template <class T>
  static bool all_finite(const Signal& signal) {
    T strip[1024];
    for (int64_t a = 0; a < signal.layout->d; a += 1024) {
      const int64_t b = std::min<int64_t>(a + 1024, signal.layout->d);
      kernels<T>().read(signal, a, b, strip);
      for (int64_t i = 0; i < b - a; ++i) {
        if (!std::isfinite(strip[i])) return false;
      }
    }
    return true;
  }

  bool finite(const std::vector<void*>& data) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Signal signal{&tensors_[i].whole, data[i]};
      const bool fine = tensors_[i].dtype == DType::f64 ? all_finite<double>(signal)
                                                        : all_finite<float>(signal);
      if (tensors_[i].bytes && !fine) return false;
    }
    return true;
  }

  bool is_large(const Job& job, int slots) const {
    return job.filter->cost() > 0.6 * total_cost_ / slots && job.filter->cost() > kWorthAThread;
  }

  static Signal signal_of(const Job& job, const std::vector<void*>& data) {
    return {job.layout, static_cast<char*>(data[job.tensor]) + job.offset};
  }

  static void run_alone(const Job& job, const std::vector<void*>& data,
                        Workspace::Slot& slot) {
    const Filter& filter = *job.filter;
    void* shared = slot.shared.at_least(filter.memory().shared);
    void* scratch = slot.scratch.at_least(filter.memory().scratch);
    for (int phase = 0; phase < filter.phases(); ++phase) {
      filter.run(phase, 0, filter.tasks(phase), signal_of(job, data), shared, scratch);
    }
  }

  static void run_spread_out(const Job& job, const std::vector<void*>& data, int slots,
                             const RunSlots& run_slots, Workspace& workspace) {
    const Filter& filter = *job.filter;
    void* shared = workspace.slots[0].shared.at_least(filter.memory().shared);
    for (int phase = 0; phase < filter.phases(); ++phase) {
      const int64_t tasks = filter.tasks(phase);
      // A few pieces a thread even out what other programs take of a core.
      const int64_t piece = std::max<int64_t>(1, tasks / (4 * slots));
      std::atomic<int64_t> next{0};
      const auto take_tasks = [&](int slot) {
        void* scratch = workspace.slots[slot].scratch.at_least(filter.memory().scratch);
        for (int64_t a = next.fetch_add(piece); a < tasks; a = next.fetch_add(piece)) {
          filter.run(phase, a, std::min(a + piece, tasks), signal_of(job, data), shared, scratch);
        }
      };
      if (tasks == 1) {
        take_tasks(0);
      } else {
        run_slots(slots, take_tasks);
      }
    }
  }

  std::vector<TensorPlan> tensors_;
  bool refuse_nonfinite_;
  std::map<std::pair<int64_t, bool>, std::unique_ptr<Filter>> filters_;  // by design and `direct`
  std::vector<Job> jobs_;
  std::vector<size_t> batches_;  // where in jobs_ each starts, and the end
  double total_cost_ = 0;
  mutable std::mutex disjoint_mutex_;
  mutable std::vector<int64_t> disjoint_places_;
};

}  // namespace

void* Buffer::at_least(int64_t bytes) {
  if (bytes > capacity_) {
    const int64_t rounded = (bytes + 63) / 64 * 64;
    memory_.reset(std::aligned_alloc(64, static_cast<size_t>(rounded)));
    capacity_ = memory_ ? rounded : 0;
    if (!memory_) throw std::bad_alloc();
  }
  return memory_.get();
}

std::shared_ptr<const Program> Program::build(std::vector<FilterDesign> designs,
                                              std::vector<TensorPlan> tensors,
                                              bool refuse_nonfinite) {
  return std::make_shared<const JobList>(std::move(designs), std::move(tensors), refuse_nonfinite);
}

}  // namespace specgrad
