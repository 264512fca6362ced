#include "filters.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cpu.h"
#include "kernels.h"
#include "plan_tables.h"
#include "workspace.h"

namespace specgrad {
namespace {

template <class T>
class Builder {
 public:
  explicit Builder(const FilterDesign& design) : design_(design) {}

  Filter build(bool direct) {
    filter_.memory = memory_of(design_, direct);
    filter_.cost = design_.cost;
    if (design_.removes_mean) {
      add_phase(1, 1, [](const Piece& piece) { kernels<T>().subtract_large_mean(piece.signal); });
    }
    switch (design_.strategy) {
      case Strategy::mean: add_mean(); break;
      case Strategy::dense: add_dense(); break;
      case Strategy::band: add_band(); break;
      case Strategy::full: add_full(direct); break;
      case Strategy::box:
      case Strategy::weights: add_detrend(); break;
      case Strategy::wide: add_wide(); break;
      default: throw std::invalid_argument("specgrad: a design names no strategy");
    }
    return std::move(filter_);
  }

 private:
  // The tables, which live as long as the filter.
  template <class Plan>
  const Plan& keep(Plan plan) {
    const auto kept = std::make_shared<const Plan>(std::move(plan));
    filter_.spans = kept->tables();
    filter_.tables = kept;
    return *kept;
  }

  struct Piece {
    int64_t begin, end;
    const Signal& signal;
    T *shared, *scratch;
  };

  // A phase over `total` items, of which `size` are worth a task.
  template <class Run>
  void add_phase(int64_t total, int64_t size, Run run) {
    filter_.phases.push_back({ceil_div(total, size), [=](const Work& work) {
      run(Piece{work.begin * size, std::min(work.end * size, total), work.signal,
                static_cast<T*>(work.shared), static_cast<T*>(work.scratch)});
    }});
  }

  // The three steps of a circulant, with a tile of vectors as scratch.
  template <class GridOf>
  void add_circulant(const CirculantTables<T>& plan, GridOf grid_of) {
    const auto add_step = [&](int64_t tasks, auto kernel) {
      add_phase(tasks, 1, [=, &plan](const Piece& piece) {
        kernel(plan, grid_of(piece), piece.begin, piece.end, piece.scratch);
      });
    };
    const int64_t tiles = plan.pitch / (2 * chosen_lanes<T>());
    add_step(tiles, kernels<T>().columns_forward);
    add_step(plan.groups, kernels<T>().rows_filter);
    add_step(tiles, kernels<T>().columns_inverse);
  }

  // Cells that follow each other become rows of whole tiles where they are, the last row first.
  static void move_apart(const CirculantTables<T>& plan, T* cells) {
    for (int64_t row = plan.rows; --row >= 0 && plan.pitch > plan.columns;) {
      T *const from = cells + row * plan.columns, *const to = cells + row * plan.pitch;
      std::copy_backward(from, from + plan.columns, to + plan.columns);
      std::fill(to + plan.columns, to + plan.pitch, T(0));
    }
  }

  static void move_together(const CirculantTables<T>& plan, T* cells) {
    for (int64_t row = 1; row < plan.rows && plan.pitch > plan.columns; ++row) {
      std::copy_n(cells + row * plan.pitch, plan.columns, cells + row * plan.columns);
    }
  }

  void add_band() {
    const BandTables<T>& plan = keep(make_band<T>(design_, chosen_lanes<T>()));
    const CirculantTables<T>& circulant = plan.circulant;
    const auto cells_of = [margin = band_margin(plan.width, chosen_lanes<T>())](
                              const Piece& piece) { return piece.shared + margin; };
    add_phase(plan.cells, 1024, [=, &plan](const Piece& piece) {
      kernels<T>().spread(plan, piece.signal, piece.begin, piece.end, cells_of(piece),
                          piece.scratch);
    });
    add_phase(1, 1, [=, &plan, &circulant](const Piece& piece) {
      T* cells = cells_of(piece);
      std::fill(cells + plan.cells, cells + circulant.rows * circulant.columns, T(0));
      move_apart(circulant, cells);
    });
    add_circulant(circulant, cells_of);
    add_phase(1, 1, [=, &plan, &circulant](const Piece& piece) {
      move_together(circulant, cells_of(piece));
      kernels<T>().wrap_margins(plan, cells_of(piece));
    });
    add_phase(plan.cells, 1024, [=, &plan](const Piece& piece) {
      kernels<T>().interpolate(plan, piece.signal, piece.begin, piece.end, cells_of(piece),
                               piece.scratch);
    });
  }

  // The whole spectrum, on the gradient's own memory where that is possible, else on a copy, which
  // may be longer than the signal.
  void add_full(bool direct) {
    const CirculantTables<T>& plan = keep(make_circulant<T>(design_, chosen_lanes<T>()));
    if (works_in_place(design_, direct, chosen_lanes<T>())) {
      return add_circulant(
          plan, [](const Piece& piece) { return static_cast<T*>(piece.signal.data); });
    }
    add_rows(plan, design_.d, [](const Piece& piece, int64_t from, int64_t to, T* rows, T* end) {
      kernels<T>().read(piece.signal, from, to, rows);
      std::fill(rows + (to - from), end, T(0));
    });
    add_circulant(plan, [](const Piece& piece) { return piece.shared; });
    add_rows(plan, design_.d, [](const Piece& piece, int64_t from, int64_t to, T* rows, T*) {
      kernels<T>().write(piece.signal, from, to, rows);
    });
  }

  // A phase of run(piece, from, to, rows, end) for the rows of a grid in the shared memory, which
  // hold samples [from, to) of `total` and then nothing.
  template <class Run>
  void add_rows(const CirculantTables<T>& plan, int64_t total, Run run) {
    const int64_t size = std::max<int64_t>(1, (1 << 14) / plan.pitch);
    add_phase(plan.rows, size, [=, &plan](const Piece& piece) {
      const int64_t step = plan.pitch == plan.columns ? piece.end - piece.begin : 1;
      for (int64_t row = piece.begin; row < piece.end; row += step) {
        const int64_t from = std::min(row * plan.columns, total);
        const int64_t to = std::min(from + step * plan.columns, total);
        T* const rows = piece.shared + row * plan.pitch;
        run(piece, from, to, rows, rows + step * plan.pitch);
      }
    });
  }

  // Wide averages, on a grid of the signal continued by a radius at both ends.
  void add_wide() {
    const WideTables<T>& plan = keep(make_wide<T>(design_, chosen_lanes<T>()));
    const CirculantTables<T>& grid = plan.circulant;
    const int64_t d = design_.d, radius = plan.radius, total = d + 2 * radius;
    const int64_t ends = grid.rows * grid.pitch;  // the first and the last sample
    const Boundary beyond =
        plan.boundary == Boundary::replicate ? Boundary::count : plan.boundary;
    add_rows(grid, total, [=](const Piece& piece, int64_t from, int64_t to, T* rows, T* end) {
      kernels<T>().read_extended(piece.signal, beyond, from - radius, to - radius, rows);
      std::fill(rows + (to - from), end, T(0));
      if (from > 0) return;
      kernels<T>().read(piece.signal, 0, 1, piece.shared + ends);
      kernels<T>().read(piece.signal, d - 1, d, piece.shared + ends + 1);
    });
    add_circulant(grid, [](const Piece& piece) { return piece.shared; });
    add_rows(grid, total, [=, &plan](const Piece& piece, int64_t from, int64_t to, T* rows, T*) {
      const int64_t begin = std::max(from, radius), stop = std::min(to, d + radius);
      if (begin >= stop) return;
      kernels<T>().subtract_averages(plan, piece.signal, begin - radius, stop - radius,
                                     rows + (begin - from), piece.shared + ends);
    });
  }

  void add_mean() {
    const MeanTables plan{design_.row_columns, design_.row_inner};
    filter_.takes_runs = true;
    add_phase(1, 1, [plan](const Piece& piece) {
      kernels<T>().subtract_means(plan, piece.signal, piece.scratch);
    });
  }

  void add_dense() {
    const DenseTables<T>& plan = keep(make_dense<T>(design_));
    filter_.takes_runs = filter_.phases.empty();
    add_phase(1, 1, [&plan](const Piece& piece) {
      kernels<T>().dense_filter(plan, piece.signal, piece.scratch);
    });
  }

  void add_detrend() {
    const DetrendTables<T>& plan = keep(make_detrend<T>(design_));
    const int64_t d = design_.d, radius = plan.radius, chunk = detrend_chunk(radius);
    const auto add_chunks = [&](auto kernel) {
      add_phase(ceil_div(d, chunk), 1, [=](const Piece& piece) {
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          T* left = piece.shared + 2 * radius * i;
          kernel(piece, i * chunk, std::min((i + 1) * chunk, d), left, left + radius);
        }
      });
    };
    add_chunks([=, &plan](const Piece& piece, int64_t from, int64_t to, T* left, T* right) {
      kernels<T>().read_extended(piece.signal, plan.boundary, from - radius, from, left);
      kernels<T>().read_extended(piece.signal, plan.boundary, to, to + radius, right);
    });
    add_chunks([&plan](const Piece& piece, int64_t from, int64_t to, T* left, T* right) {
      kernels<T>().detrend(plan, piece.signal, from, to, left, right, piece.scratch);
    });
  }

  const FilterDesign& design_;
  Filter filter_;
};

}  // namespace

Memory memory_of(const FilterDesign& design, bool direct) {
  const int bytes = design.double_precision ? 8 : 4, lanes = vector_bytes(chosen_isa()) / bytes;
  // A tile of vectors, each element complex; for rows also one of twiddles, and a row for lanes
  // that have none.
  const int64_t pitch = grid_pitch(design.columns(), lanes), grid = design.rows() * pitch;
  const int64_t tile = std::max(2 * design.rows() * lanes, (4 * lanes + 1) * pitch);
  const auto numbers = [&]() -> Memory {
    switch (design.strategy) {
      case Strategy::mean: {
        const int64_t row = design.row_columns * design.row_inner;
        const bool may_lie_beside = design.row_inner == 1 && !direct;
        const int64_t beside = may_lie_beside ? beside_scratch(design.row_columns, lanes, bytes) : 0;
        return {0, whole_vectors(row + design.d / row, lanes) + beside};
      }
      case Strategy::dense: return {0, design.d + design.waves()};
      case Strategy::band: {
        const int64_t cells = kSpreadCells + cell_block(lanes) + design.width;
        return {grid + 2 * band_margin(design.width, lanes),
                std::max(tile, cells * design.hop + 4 * lanes)};
      }
      case Strategy::full: return {works_in_place(design, direct, lanes) ? 0 : grid, tile};
      case Strategy::wide: return {grid + 2, tile};
      case Strategy::box:
      case Strategy::weights: {
        const int64_t radius = design.radius();
        const bool box = design.strategy == Strategy::box;
        return {2 * radius * ceil_div(design.d, detrend_chunk(radius)),
                detrend_extent(radius, lanes) + detrend_tile(radius) +
                    (box ? moving_sum_scratch(radius, lanes) : 0)};
      }
    }
    return {};
  }();
  return {numbers.shared * bytes, numbers.scratch * bytes};
}

Filter make_filter(const FilterDesign& design, bool direct) {
  return design.double_precision ? Builder<double>(design).build(direct)
                                 : Builder<float>(design).build(direct);
}

}  // namespace specgrad
