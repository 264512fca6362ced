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
#include "overlap.h"

namespace specgrad {
namespace {

using TensorLayout = LayoutKey::Tensor;

// Merges neighbouring dimensions that one stride can walk, for a tensor that does not share
// memory with itself.
Layout merge_dimensions(DType dtype, const int64_t* sizes, const int64_t* strides, size_t dims) {
  Layout layout;
  layout.dtype = dtype;
  layout.d = 1;
  layout.dims = 0;
  for (size_t i = 0; i < dims; ++i) {
    layout.d *= sizes[i];
    if (sizes[i] == 1) continue;
    const int last = layout.dims - 1;
    if (last >= 0 && layout.strides[last] == sizes[i] * strides[i]) {
      layout.sizes[last] *= sizes[i];
      layout.strides[last] = strides[i];
      continue;
    }
    layout.sizes[layout.dims] = sizes[i];
    layout.strides[layout.dims++] = strides[i];
  }
  if (layout.dims == 0) {
    layout.sizes[0] = 1;
    layout.strides[0] = 1;
    layout.dims = 1;
  }
  return layout;
}

// Byte offsets of all elements.
std::vector<int64_t> element_offsets(const TensorLayout& tensor) {
  std::vector<int64_t> offsets{0};
  const int64_t bytes = element_size(tensor.dtype);
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * static_cast<size_t>(tensor.sizes[i]));
    for (int64_t offset : offsets) {
      for (int64_t j = 0; j < tensor.sizes[i]; ++j) {
        next.push_back(offset + j * tensor.strides[i] * bytes);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

Precision precision_of(DType dtype) {
  return dtype == DType::f64 ? Precision::double_ : Precision::single;
}

struct Job {
  const Filter* filter;
  const Layout* layout;
  size_t tensor;
  int64_t offset;  // bytes from the tensor's start: an entry of its stack
};

class JobList final : public Program {
 public:
  JobList(const std::string& spec_text, const LayoutKey& layouts)
      : tensors_(layouts.tensors()), spec_(parse_spec(spec_text)) {
    if (spec_.per_tensor && spec_.ratios.size() != tensors_.size()) {
      throw std::invalid_argument("specgrad: one ratio per tensor is needed");
    }
    for (const TensorLayout& tensor : tensors_) extents_.push_back(extent_bytes(tensor));
    for (size_t i = 0; i < tensors_.size(); ++i) add_tensor(i);
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return a.filter->cost() > b.filter->cost();
    });
    for (const Job& job : jobs_) total_cost_ += job.filter->cost();
  }

  int64_t bytes() const override {
    int64_t total = bytes_in(jobs_, tensors_, extents_);
    total += static_cast<int64_t>(layouts_.size() * sizeof(Layout));
    for (const auto& [key, filter] : filters_) {
      if (filter) total += filter->table_bytes();
    }
    return total;
  }

  void check(const std::vector<void*>& data) const override {
    check_overlap(data);
    if (spec_.raise_nonfinite) check_finite(data);
  }

  void run(const std::vector<void*>& data, int threads, const RunSlots& run_slots,
           Workspace& workspace) const override {
    const int slots = total_cost_ < kWorthAThread ? 1 : std::max(threads, 1);
    if (static_cast<int>(workspace.slots.size()) < slots) workspace.slots.resize(slots);
    size_t first_small = 0;
    while (slots > 1 && first_small < jobs_.size() && is_large(jobs_[first_small], slots)) {
      run_spread_out(jobs_[first_small++], data, slots, run_slots, workspace);
    }
    std::atomic<size_t> next{first_small};
    const auto take_jobs = [&](int slot) {
      for (size_t i = next++; i < jobs_.size(); i = next++) {
        run_alone(jobs_[i], data, workspace.slots[slot]);
      }
    };
    if (slots == 1) {
      take_jobs(0);
    } else if (first_small < jobs_.size()) {
      run_slots(slots, take_jobs);
    }
  }

 private:
  // In the units of the cost model, some 50 microseconds: below it, waking a thread costs more
  // than it saves.
  static constexpr double kWorthAThread = 300000;

  void add_tensor(size_t index) {
    const TensorLayout& tensor = tensors_[index];
    const size_t dims = tensor.sizes.size(), batch = static_cast<size_t>(spec_.batch_dims);
    if (dims < batch) throw std::invalid_argument("specgrad: fewer dimensions than batch_dims");
    if (shares_memory_with_itself(tensor)) {
      throw std::invalid_argument("specgrad: a gradient shares memory with itself");
    }
    if (extents_[index] == 0) return;
    layouts_.push_back(std::make_unique<Layout>(merge_dimensions(
        tensor.dtype, tensor.sizes.data() + batch, tensor.strides.data() + batch, dims - batch)));
    const Layout* layout = layouts_.back().get();
    const Filter* filter = filter_for(index, *layout);
    if (!filter) return;
    const TensorLayout stack{tensor.dtype, {tensor.sizes.begin(), tensor.sizes.begin() + batch},
                             {tensor.strides.begin(), tensor.strides.begin() + batch}};
    for (int64_t offset : element_offsets(stack)) jobs_.push_back({filter, layout, index, offset});
  }

  const Filter* filter_for(size_t index, const Layout& layout) {
    const Ratio ratio = spec_.ratio_of(index);
    const bool direct = layout.contiguous() && element_size(layout.dtype) >= 4;
    const auto key = std::make_tuple(layout.d, precision_of(layout.dtype), direct, ratio.numerator,
                                     ratio.denominator);
    auto found = filters_.find(key);
    if (found == filters_.end()) {
      found = filters_.emplace(key, make_filter(spec_, index, layout.d,
                                                precision_of(layout.dtype), direct)).first;
    }
    return found->second.get();
  }

  struct Extent {
    int64_t start, end;
    size_t tensor;
    bool operator<(const Extent& other) const {
      return std::tie(start, end, tensor) < std::tie(other.start, other.end, other.tensor);
    }
  };

  void check_overlap(const std::vector<void*>& data) const {
    std::vector<Extent> extents;
    extents.reserve(data.size());
    for (size_t i = 0; i < data.size(); ++i) {
      const int64_t start = static_cast<int64_t>(reinterpret_cast<intptr_t>(data[i]));
      if (extents_[i]) extents.push_back({start, start + extents_[i], i});
    }
    std::sort(extents.begin(), extents.end());
    for (size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].start < extents[i - 1].end) return check_interleaved(extents);
    }
  }

  // Slices of one tensor lie within each other's extents on every call: the places of the last
  // that shared nothing are remembered.
  void check_interleaved(const std::vector<Extent>& extents) const {
    std::vector<int64_t> places;
    for (const Extent& extent : extents) {
      places.push_back(static_cast<int64_t>(extent.tensor));
      places.push_back(extent.start - extents.front().start);
    }
    const std::lock_guard<std::mutex> lock(disjoint_mutex_);
    if (places == disjoint_places_) return;
    std::vector<Extent> active;  // those that reach beyond the start at hand
    for (const Extent& extent : extents) {
      active.erase(std::remove_if(active.begin(), active.end(),
                                  [&](const Extent& other) { return other.end <= extent.start; }),
                   active.end());
      for (const Extent& other : active) {
        if (share_memory(tensors_[other.tensor], tensors_[extent.tensor],
                         extent.start - other.start)) {
          throw std::invalid_argument("specgrad: two gradients share memory");
        }
      }
      active.push_back(extent);
    }
    disjoint_places_ = std::move(places);
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

  void check_finite(const std::vector<void*>& data) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (extents_[i] == 0) continue;
      const Layout whole = merge_dimensions(tensors_[i].dtype, tensors_[i].sizes.data(),
                                            tensors_[i].strides.data(), tensors_[i].sizes.size());
      const Signal signal{&whole, data[i]};
      const bool finite = whole.dtype == DType::f64
                              ? all_finite<double>(signal)
                              : all_finite<float>(signal);
      if (!finite) throw std::invalid_argument("specgrad: a gradient holds NaN or Inf");
    }
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

  using FilterKey = std::tuple<int64_t, Precision, bool, int64_t, int64_t>;

  std::vector<TensorLayout> tensors_;
  std::vector<int64_t> extents_;  // bytes of each tensor
  Spec spec_;
  std::vector<std::unique_ptr<Layout>> layouts_;
  std::map<FilterKey, std::unique_ptr<Filter>> filters_;
  std::vector<Job> jobs_;
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

std::shared_ptr<const Program> Program::build(const std::string& spec_text,
                                              const LayoutKey& layouts) {
  return std::make_shared<const JobList>(spec_text, layouts);
}

}  // namespace specgrad
