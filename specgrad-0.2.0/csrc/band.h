// Between samples and coarse cells. Included inside the namespace of an instruction set.

// y[i] = window starting at x + i * hop, for i < cells, a multiple of cell_block. Every vector of
// samples is loaded once for all the cells of a block that it touches. `Shared` cells start in
// one vector (1 when a cell is a vector or longer); the window of the second of them is the
// second row of `taps`, and so on.
template <int Vectors, int Shared, class T>
static inline void spread_rows(const T* x, const T* taps, int64_t cells, T* y) {
  constexpr int lanes = kLanes<T>, block = cell_block(lanes);
  constexpr int hop = lanes / Shared, starts = block / Shared;
  Vec<T> weights[Shared * Vectors];
  repeat<Shared * Vectors>(SPECGRAD_EACH { weights[index] = load(taps + index * lanes); });
  for (int64_t m = 0; m < cells; m += block) {
    const T* first = x + m * hop;
    Vec<T> sums[block] = {};
    repeat<starts / kVectorsALine>(SPECGRAD_EACH {
      prefetch(first + kAhead<T> + index * kVectorsALine * lanes);
    });
    repeat<starts + Vectors - 1>(SPECGRAD_EACH {
      constexpr int i = index;
      const Vec<T> samples = load(first + i * lanes);
      repeat<block>(SPECGRAD_EACH {
        constexpr int v = i - index / Shared;
        if constexpr (v >= 0 && v < Vectors) {
          sums[index] += samples * weights[index % Shared * Vectors + v];
        }
      });
    });
    repeat<block / lanes>(SPECGRAD_EACH {
      store(y + m + index * lanes, sum_rows<T>(sums + index * lanes));
    });
  }
}

// The same for any hop and window.
template <class T>
static inline void spread_any(const T* x, const T* taps, int vectors, int hop, int64_t cells,
                              T* y) {
  constexpr int lanes = kLanes<T>, block = cell_block(lanes);
  for (int64_t m = 0; m < cells; m += block) {
    const T* first = x + m * hop;
    Vec<T> sums[block] = {};
    for (int v = 0; v < vectors; ++v) {
      const Vec<T> weight = load(taps + v * lanes);
      repeat<block>(SPECGRAD_EACH {
        sums[index] += load(first + static_cast<int64_t>(index) * hop + v * lanes) * weight;
      });
    }
    repeat<block / lanes>(SPECGRAD_EACH {
      store(y + m + index * lanes, sum_rows<T>(sums + index * lanes));
    });
  }
}

template <class T>
static inline void spread_block(const BandTables<T>& plan, const T* x, int64_t cells, T* y) {
  constexpr int lanes = kLanes<T>;
  const T* taps = plan.taps.data();
  bool known = false;
  if (plan.hop == lanes) {
    known = with_constant<5, 6, 7, 8, 9, 10>(
        plan.tap_vectors, SPECGRAD_EACH { spread_rows<index, 1>(x, taps, cells, y); });
  } else if (2 * plan.hop == lanes) {
    known = with_constant<4, 5, 6>(
        plan.tap_vectors, SPECGRAD_EACH { spread_rows<index, 2>(x, taps, cells, y); });
  }
  if (!known) spread_any(x, taps, plan.tap_vectors, plan.hop, cells, y);
}

// Coarse cells [begin, end) of the signal.
template <class T>
static void spread(const BandTables<T>& plan, const Signal& signal, int64_t begin, int64_t end,
                   T* cells, T* scratch) {
  constexpr int lanes = kLanes<T>, block = cell_block(lanes);
  const int64_t d = signal.layout->d;
  const int64_t reach = static_cast<int64_t>(plan.tap_vectors) * lanes;
  const T* direct = is_direct<T>(signal) ? static_cast<const T*>(signal.data) : nullptr;
  int64_t m = begin;
  while (m < end) {
    const int64_t start = (m - plan.lead()) * plan.hop;
    if (direct && start >= 0 && m + block <= end) {
      // Whole blocks of cells whose windows, padding included, lie inside the gradient.
      const int64_t room = d - reach - start;
      const int64_t fitting = room < 0 ? 0 : room / plan.hop + 1;
      const int64_t count = std::min(end - m, fitting) / block * block;
      if (count > 0) {
        spread_block(plan, direct + start, count, cells + m);
        m += count;
        continue;
      }
    }
    const int64_t count = std::min(end - m, direct ? static_cast<int64_t>(block) : kSpreadCells);
    const int64_t whole = ceil_div(count, block) * block;
    const int64_t samples = (count - 1) * plan.hop + plan.hop * plan.width;
    const int64_t needed = (whole - 1) * plan.hop + reach;
    read_extended(signal, Boundary::circular, start, start + samples, scratch);
    std::fill(scratch + samples, scratch + needed, T(0));
    alignas(64) T sums[kSpreadCells];
    spread_block(plan, scratch, whole, sums);
    std::copy(sums, sums + count, cells + m);
    m += count;
  }
}

// Copies the margins that interpolation reads beyond both ends of the cells.
template <class T>
static void wrap_margins(const BandTables<T>& plan, T* cells) {
  for (int64_t i = 0; i < plan.width + kLanes<T>; ++i) {
    cells[plan.cells + i] = cells[i % plan.cells];
    cells[-1 - i] = cells[plan.cells - 1 - i % plan.cells];
  }
}

// x -= interpolation of z over `count` vectors; vector i lies at x + i * stride and starts in
// coarse cell i * step. For any step and number of offsets.
template <int Block, class T>
static inline void subtract_any(T* x, int stride, const T* z, const T* spline, int offsets,
                                int64_t count, int step) {
  int64_t i = 0;
  for (; i + Block <= count; i += Block) {
    const T* cells = z + i * step;
    Vec<T> sums[Block];
    repeat<Block>(SPECGRAD_EACH { sums[index] = load(x + (i + index) * stride); });
    for (int o = 0; o < offsets; ++o) {
      const Vec<T> weight = load(spline + o * kLanes<T>);
      repeat<Block>(SPECGRAD_EACH { sums[index] -= weight * cells[index * step + o]; });
    }
    repeat<Block>(SPECGRAD_EACH { store(x + (i + index) * stride, sums[index]); });
  }
  if constexpr (Block > 1) {
    subtract_any<1>(x + i * stride, stride, z + i * step, spline, offsets, count - i, step);
  }
}

// The same where both are known: every coarse value is broadcast once for all the vectors of a
// block.
template <int Offsets, int Step, class T>
static inline void subtract_rows(T* x, int stride, const T* z, const T* spline, int64_t count) {
  constexpr int lanes = kLanes<T>;
  constexpr int block = std::clamp(kRegisters - Offsets - 2, 4, 8);
  Vec<T> weights[Offsets];
  repeat<Offsets>(SPECGRAD_EACH { weights[index] = load(spline + index * lanes); });
  int64_t i = 0;
  for (; i + block <= count; i += block) {
    T* first = x + i * stride;
    const T* cells = z + i * Step;
    Vec<T> sums[block];
    repeat<block / kVectorsALine>(SPECGRAD_EACH {
      prefetch(first + kAhead<T> + index * kVectorsALine * stride);
    });
    repeat<block>(SPECGRAD_EACH { sums[index] = load(first + index * stride); });
    repeat<(block - 1) * Step + Offsets>(SPECGRAD_EACH {
      constexpr int c = index;
      const T cell = cells[c];
      repeat<block>(SPECGRAD_EACH {
        constexpr int offset = c - index * Step;
        if constexpr (offset >= 0 && offset < Offsets) sums[index] -= weights[offset] * cell;
      });
    });
    repeat<block>(SPECGRAD_EACH { store(first + index * stride, sums[index]); });
  }
  subtract_any<1>(x + i * stride, stride, z + i * Step, spline, Offsets, count - i, Step);
}

// Vectors [0, count) from the start of a cell on.
template <class T>
static inline void subtract_block(const BandTables<T>& plan, T* x, const T* z, int64_t count) {
  constexpr int lanes = kLanes<T>;
  const int segments = std::max(plan.hop / lanes, 1), step = std::max(lanes / plan.hop, 1);
  const int stride = segments * lanes;
  // So few vectors that every segment finds their samples in the cache; whole blocks of any size.
  const int64_t total = count / segments, at_once = segments == 1 ? total : 120;
  for (int64_t i = 0; i < total; i += at_once) {
    for (int segment = 0; segment < segments; ++segment) {
      T* first = x + i * stride + segment * lanes;
      const T* cells = z + i * step;
      const T* spline = plan.spline.data() + static_cast<int64_t>(segment) * plan.offsets * lanes;
      const int64_t vectors = std::min(total - i, at_once);
      const bool known = step <= 2 && with_constant<5, 6, 7, 8, 9, 10>(plan.offsets, SPECGRAD_EACH {
        if (step == 1) subtract_rows<index, 1>(first, stride, cells, spline, vectors);
        if (step == 2) subtract_rows<index, 2>(first, stride, cells, spline, vectors);
      });
      if (!known) subtract_any<4>(first, stride, cells, spline, plan.offsets, vectors, step);
    }
  }
}

// Subtracts the band from the samples of cells [begin, end); begin is a multiple of the lanes.
// `cells` has its margins wrapped.
template <class T>
static void interpolate(const BandTables<T>& plan, const Signal& signal, int64_t begin, int64_t end,
                        const T* cells, T* scratch) {
  constexpr int lanes = kLanes<T>;
  const T* first = cells + plan.lead() - (plan.width - 1);
  int64_t m = begin;
  if (is_direct<T>(signal)) {
    const int64_t whole = (end - begin) * plan.hop / lanes;
    subtract_block(plan, static_cast<T*>(signal.data) + begin * plan.hop, first + begin, whole);
    m += whole * lanes / plan.hop;
  }
  while (m < end) {
    const int64_t count = std::min(end - m, kSpreadCells);
    const int64_t samples = count * plan.hop;
    read_samples(signal, m * plan.hop, m * plan.hop + samples, scratch);
    const int64_t vectors = ceil_div(samples, lanes);
    std::fill(scratch + samples, scratch + vectors * lanes, T(0));
    subtract_block(plan, scratch, first + m, vectors);
    write_samples(signal, m * plan.hop, m * plan.hop + samples, scratch);
    m += count;
  }
}
