#include "filters.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu.h"
#include "plan_tables.h"
#include "workspace.h"

namespace specgrad {
namespace {

// The three steps of a circulant as phases, with a tile of vectors as scratch.
template <class T>
struct CirculantSteps {
  const CirculantPlan<T>& plan;

  int64_t tasks(int step) const {
    return step == 1 ? plan.groups : ceil_div(plan.columns, 2 * chosen_lanes<T>());
  }
  void run(int step, int64_t begin, int64_t end, T* grid, T* tile) const {
    const Kernels<T>& k = kernels<T>();
    (step == 0 ? k.columns_forward : step == 1 ? k.rows_filter : k.columns_inverse)(
        plan, grid, begin, end, tile);
  }
};

template <class T>
Memory memory_of(const FilterDesign& design, bool direct = true) {
  const int64_t bytes = sizeof(T);
  return {shared_of(design, chosen_lanes<T>(), direct) * bytes,
          scratch_of(design, chosen_lanes<T>()) * bytes};
}

// Ranges of a long list of equal pieces, large enough to be worth a task.
struct Pieces {
  int64_t total;
  int64_t size;

  int64_t tasks() const { return ceil_div(total, size); }
  int64_t begin(int64_t task) const { return std::min(task * size, total); }
};

template <class T>
class BandFilter final : public Filter {
 public:
  explicit BandFilter(const FilterDesign& design)
      : Filter(memory_of<T>(design), design.cost),
        plan_(make_band<T>(design, chosen_lanes<T>())),
        steps_{plan_.circulant},
        cells_{plan_.cells, 1024} {}

  int phases() const override { return 6; }

  int64_t tasks(int phase) const override {
    if (phase == 0 || phase == 5) return cells_.tasks();
    return phase == 4 ? 1 : steps_.tasks(phase - 1);
  }

  void run(int phase, int64_t begin, int64_t end, const Signal& signal, void* shared,
           void* scratch) const override {
    T* cells = static_cast<T*>(shared) + band_margin(plan_.width, chosen_lanes<T>());
    T* work = static_cast<T*>(scratch);
    const Kernels<T>& k = kernels<T>();
    const int64_t from = cells_.begin(begin), to = cells_.begin(end);
    switch (phase) {
      case 0:
        if (to == plan_.cells) std::fill(cells + to, cells + plan_.circulant.size(), T(0));
        return k.spread(plan_, signal, from, to, cells, work);
      case 4: return k.wrap_margins(plan_, cells);
      case 5: return k.interpolate(plan_, signal, from, to, cells, work);
      default: return steps_.run(phase - 1, begin, end, cells, work);
    }
  }

  int64_t table_bytes() const override { return plan_.bytes(); }

 private:
  BandPlan<T> plan_;
  CirculantSteps<T> steps_;
  Pieces cells_;
};

// The whole spectrum, on the gradient's own memory where that is possible, else on a copy. A
// padded grid is longer than the signal and yields the low band.
template <class T>
class FullFilter final : public Filter {
 public:
  FullFilter(const FilterDesign& design, bool direct)
      : Filter(memory_of<T>(design, direct), design.cost),
        plan_(make_circulant<T>(design, chosen_lanes<T>())),
        steps_{plan_},
        samples_{design.d, 1 << 14},
        padded_(design.strategy == Strategy::padded),
        in_place_(works_in_place(design, direct)) {}

  int phases() const override { return in_place_ ? 3 : 5; }

  int64_t tasks(int phase) const override {
    if (in_place_) return steps_.tasks(phase);
    return phase == 0 || phase == 4 ? samples_.tasks() : steps_.tasks(phase - 1);
  }

  void run(int phase, int64_t begin, int64_t end, const Signal& signal, void* shared,
           void* scratch) const override {
    T* work = static_cast<T*>(scratch);
    if (in_place_) return steps_.run(phase, begin, end, static_cast<T*>(signal.data), work);
    T* grid = static_cast<T*>(shared);
    const int64_t from = samples_.begin(begin), to = samples_.begin(end);
    if (phase == 0) {
      kernels<T>().read(signal, from, to, grid + from);
      if (to == samples_.total) std::fill(grid + to, grid + plan_.size(), T(0));
    } else if (phase == 4) {
      write_result(signal, from, to, grid, work);
    } else {
      steps_.run(phase - 1, begin, end, grid, work);
    }
  }

  int64_t table_bytes() const override { return plan_.bytes(); }

 private:
  void write_result(const Signal& signal, int64_t from, int64_t to, const T* grid, T* work) const {
    if (!padded_) return kernels<T>().write(signal, from, to, grid + from);
    for (int64_t a = from; a < to; a += kFullStrip) {
      const int64_t b = std::min(a + kFullStrip, to);
      kernels<T>().read(signal, a, b, work);
      for (int64_t i = a; i < b; ++i) work[i - a] -= grid[i];
      kernels<T>().write(signal, a, b, work);
    }
  }

  CirculantPlan<T> plan_;
  CirculantSteps<T> steps_;
  Pieces samples_;
  bool padded_;
  bool in_place_;
};

template <class T>
class DenseFilter final : public Filter {
 public:
  explicit DenseFilter(const FilterDesign& design)
      : Filter(memory_of<T>(design), design.cost), plan_(make_dense<T>(design)) {}

  int phases() const override { return 1; }
  int64_t tasks(int) const override { return 1; }
  void run(int, int64_t, int64_t, const Signal& signal, void*, void* scratch) const override {
    kernels<T>().dense_filter(plan_, signal, static_cast<T*>(scratch));
  }
  int64_t table_bytes() const override { return plan_.bytes(); }

 private:
  DensePlan<T> plan_;
};

template <class T>
class DetrendFilter final : public Filter {
 public:
  explicit DetrendFilter(const FilterDesign& design)
      : Filter(memory_of<T>(design), cost_of(design)),
        plan_(make_detrend<T>(design)),
        chunks_{design.d, detrend_chunk(plan_.radius)} {}

  int phases() const override { return 2; }
  int64_t tasks(int) const override { return chunks_.tasks(); }

  void run(int phase, int64_t begin, int64_t end, const Signal& signal, void* shared,
           void* scratch) const override {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      T* left = static_cast<T*>(shared) + 2 * plan_.radius * chunk;
      T* right = left + plan_.radius;
      const int64_t from = chunks_.begin(chunk), to = chunks_.begin(chunk + 1);
      if (phase == 0) {
        kernels<T>().read_extended(plan_, signal, from - plan_.radius, from, left);
        kernels<T>().read_extended(plan_, signal, to, to + plan_.radius, right);
      } else {
        kernels<T>().detrend(plan_, signal, from, to, left, right, static_cast<T*>(scratch));
      }
    }
  }

  int64_t table_bytes() const override { return plan_.bytes(); }

 private:
  static double cost_of(const FilterDesign& design) {
    const bool box = design.strategy == Strategy::box;
    const double work = box ? 36 : 2.6 * static_cast<double>(design.radius()) + 2;
    return static_cast<double>(ceil_div(design.d, chosen_lanes<T>())) * work + 200;
  }

  DetrendPlan<T> plan_;
  Pieces chunks_;
};

template <class T>
std::unique_ptr<Filter> make_typed(const FilterDesign& design, bool direct) {
  switch (design.strategy) {
    case Strategy::dense: return std::make_unique<DenseFilter<T>>(design);
    case Strategy::band: return std::make_unique<BandFilter<T>>(design);
    case Strategy::full:
    case Strategy::padded: return std::make_unique<FullFilter<T>>(design, direct);
    case Strategy::box:
    case Strategy::weights: return std::make_unique<DetrendFilter<T>>(design);
  }
  throw std::invalid_argument("specgrad: a design names no strategy");
}

}  // namespace

std::unique_ptr<Filter> make_filter(const FilterDesign& design, bool direct) {
  return design.double_precision ? make_typed<double>(design, direct)
                                 : make_typed<float>(design, direct);
}

}  // namespace specgrad
