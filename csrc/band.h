// Between samples and coarse cells. Included inside the namespace of an instruction set.

// y[i] = window starting at x + i * hop, for i < cells (a multiple of the lanes).
template <int Vectors, class T>
static inline void spread_direct(const T* x, const T* taps, int vectors, int hop, int64_t cells,
                                 T* y) {
  constexpr int lanes = kLanes<T>;
  const int count = Vectors ? Vectors : vectors;
  for (int64_t m = 0; m < cells; m += lanes) {
    Vec<T> sums[lanes];
    for (int i = 0; i < lanes; ++i) {
      const T* p = x + (m + i) * hop;
      Vec<T> sum = load(p) * load(taps);
      for (int v = 1; v < count; ++v) sum += load(p + v * lanes) * load(taps + v * lanes);
      sums[i] = sum;
    }
    store(y + m, sum_rows<T>(sums));
  }
}

template <class T>
static inline void spread_block(const BandPlan<T>& plan, const T* x, int64_t cells, T* y) {
  const T* taps = plan.taps.data();
  switch (plan.tap_vectors) {
    case 3: return spread_direct<3>(x, taps, 3, plan.hop, cells, y);
    case 4: return spread_direct<4>(x, taps, 4, plan.hop, cells, y);
    case 5: return spread_direct<5>(x, taps, 5, plan.hop, cells, y);
    case 7: return spread_direct<7>(x, taps, 7, plan.hop, cells, y);
    default: return spread_direct<0>(x, taps, plan.tap_vectors, plan.hop, cells, y);
  }
}

// Coarse cells [begin, end) of the signal.
template <class T>
static void spread(const BandPlan<T>& plan, const Signal& signal, int64_t begin, int64_t end,
                   T* cells, T* scratch) {
  constexpr int lanes = kLanes<T>;
  const int64_t d = signal.layout->d;
  const int64_t reach = static_cast<int64_t>(plan.tap_vectors) * lanes;
  const T* direct = is_direct<T>(signal) ? static_cast<const T*>(signal.data) : nullptr;
  int64_t m = begin;
  while (m < end) {
    const int64_t start = (m - plan.lead()) * plan.hop;
    if (direct && start >= 0 && m + lanes <= end) {
      // Whole vectors of cells whose windows, padding included, lie inside the gradient.
      const int64_t room = d - reach - start;
      const int64_t fitting = room < 0 ? 0 : room / plan.hop + 1;
      const int64_t count = std::min(end - m, fitting) / lanes * lanes;
      if (count > 0) {
        spread_block(plan, direct + start, count, cells + m);
        m += count;
        continue;
      }
    }
    const int64_t count = std::min(end - m, direct ? static_cast<int64_t>(lanes) : kSpreadCells);
    const int64_t whole = ceil_div(count, lanes) * lanes;
    const int64_t samples = (count - 1) * plan.hop + plan.hop * plan.width;
    const int64_t needed = (whole - 1) * plan.hop + reach;
    read_circular(signal, start, start + samples, scratch);
    std::fill(scratch + samples, scratch + needed, T(0));
    alignas(64) T sums[kSpreadCells + kLanes<T>];
    spread_block(plan, scratch, whole, sums);
    std::copy(sums, sums + count, cells + m);
    m += count;
  }
}

// Copies the margins that interpolation reads beyond both ends of the cells.
template <class T>
static void wrap_margins(const BandPlan<T>& plan, T* cells) {
  for (int64_t i = 0; i < plan.width + kLanes<T>; ++i) {
    cells[plan.cells + i] = cells[i % plan.cells];
    cells[-1 - i] = cells[plan.cells - 1 - i % plan.cells];
  }
}

// x -= interpolation of z over `count` vectors; vector i lies at x + i * stride and starts in
// coarse cell i * step.
template <int Offsets, class T>
static inline void subtract_vectors(T* x, int stride, const T* z, const T* spline, int offsets,
                                    int64_t count, int step) {
  constexpr int lanes = kLanes<T>;
  constexpr int unroll = 4;
  const int terms = Offsets ? Offsets : offsets;
  int64_t i = 0;
  for (; i + unroll <= count; i += unroll) {
    const T* cell = z + i * step;
    Vec<T> sums[unroll];
    for (int u = 0; u < unroll; ++u) sums[u] = load(x + (i + u) * stride);
    for (int o = 0; o < terms; ++o) {
      const Vec<T> weight = load(spline + o * lanes);
      for (int u = 0; u < unroll; ++u) sums[u] -= weight * cell[u * step + o];
    }
    for (int u = 0; u < unroll; ++u) store(x + (i + u) * stride, sums[u]);
  }
  for (; i < count; ++i) {
    const T* cell = z + i * step;
    Vec<T> sum = load(x + i * stride);
    for (int o = 0; o < terms; ++o) sum -= load(spline + o * lanes) * cell[o];
    store(x + i * stride, sum);
  }
}

template <class T>
static inline void subtract_block(const BandPlan<T>& plan, T* x, const T* z, int64_t count) {
  constexpr int lanes = kLanes<T>;
  const T* spline = plan.spline.data();
  if (plan.hop > lanes) {
    const int segments = plan.hop / lanes;
    for (int segment = 0; segment < segments; ++segment) {
      subtract_vectors<0>(x + segment * lanes, plan.hop, z,
                          spline + static_cast<int64_t>(segment) * plan.offsets * lanes,
                          plan.offsets, count / segments, 1);
    }
    return;
  }
  const int step = lanes / plan.hop;
  switch (plan.offsets) {
    case 6: return subtract_vectors<6>(x, lanes, z, spline, 6, count, step);
    case 7: return subtract_vectors<7>(x, lanes, z, spline, 7, count, step);
    case 8: return subtract_vectors<8>(x, lanes, z, spline, 8, count, step);
    case 9: return subtract_vectors<9>(x, lanes, z, spline, 9, count, step);
    case 10: return subtract_vectors<10>(x, lanes, z, spline, 10, count, step);
    default: return subtract_vectors<0>(x, lanes, z, spline, plan.offsets, count, step);
  }
}

// Subtracts the band from the samples of cells [begin, end); begin is a multiple of the lanes.
// `cells` has its margins wrapped.
template <class T>
static void interpolate(const BandPlan<T>& plan, const Signal& signal, int64_t begin, int64_t end,
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
