// Subtracting a local average in place, tile by tile. Included inside the namespace of an
// instruction set.
//
// A chunk of samples is handled by one thread. What lies beyond its two ends is saved before
// any chunk is written, so that no chunk sees another's result.

// Vectors of sums that are computed together, in half of the registers.
constexpr int kDetrendVectors = kRegisters / 2;

// Stores the sums of 2 * Width neighbours, then of twice as many, up to one vector: those that the
// digits of the window ask for. From the last vector of samples to the first, so that each step
// finds its right neighbour in a register.
template <int Width, class T>
static SPECGRAD_INLINE void double_width(Vec<T> sum, Vec<T>* right, int64_t window, T* at,
                                         int64_t level) {
  if constexpr (Width < kLanes<T>) {
    const Vec<T> wider = sum + shift_lanes<Width, T>(sum, *right);
    *right = sum;
    if (2 * Width == kLanes<T> || window & 2 * Width) store(at, wider);
    double_width<2 * Width, T>(wider, right + 1, window, at + level, level);
  }
}

// sums[i] = x[i] + x[i + width] + x[i + 2 width] + x[i + 3 width]; may overrun by a vector.
template <class T>
static void quadruple(const T* x, int64_t width, int64_t count, T* sums) {
  for (int64_t i = 0; i < count; i += kLanes<T>) {
    const T* p = x + i;
    store(sums + i, (load(p) + load(p + width)) + (load(p + 2 * width) + load(p + 3 * width)));
  }
}

// A moving sum of `window` samples, as a few loads from sums of neighbours: the binary digits of
// the window below one vector, its digits in base 4 above, say how many of each. As accurate as
// a pairwise sum.
template <class T>
struct MovingSum {
  const T* terms[3 * 32];
  int count = 0;

  MovingSum(const T* x, int64_t length, int64_t radius, T* work) {
    constexpr int lanes = kLanes<T>;
    const int64_t window = 2 * radius + 1, level = detrend_extent(radius, lanes);
    Vec<T> right[lanes] = {};
    for (int64_t at = ceil_div(length + window - 1, lanes) * lanes; (at -= lanes) >= 0;) {
      double_width<1, T>(load(x + at), right, window, work + at, level);
    }
    int64_t end = window;  // the widest sums go first, where their loads are aligned
    for (int64_t width = 1, wider; width <= window; width = wider) {
      wider = wider_sums(width, lanes);
      if (width > lanes) quadruple(x, width / 4, length + window - width, work);
      if (width > 1) x = std::exchange(work, work + level);
      for (int64_t rest = window & (wider - 1); rest >= width; rest -= width) {
        terms[count++] = x + (end -= width);
      }
    }
  }

  SPECGRAD_INLINE void at(int64_t i, Vec<T>* sums) const {
    const T* first = terms[0] + i;
    repeat<kDetrendVectors>(SPECGRAD_EACH { sums[index] = load(first + index * kLanes<T>); });
    for (int t = 1; t < count; ++t) {
      const T* next = terms[t] + i;
      repeat<kDetrendVectors>(SPECGRAD_EACH { sums[index] += load(next + index * kLanes<T>); });
    }
  }
};

// sums[b] += sum over the first Groups of weights[g * lanes] * x[(b + g) * lanes], for the taps
// that share one shift: every vector that is loaded serves several sums.
template <int Groups, class T>
static SPECGRAD_INLINE void accumulate_shift(const T* x, const T* weights, Vec<T>* sums) {
  constexpr int lanes = kLanes<T>;
#pragma GCC unroll 20
  for (int t = 0; t < kDetrendVectors + Groups - 1; ++t) {
    const Vec<T> value = load(x + t * lanes);
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) {
      if (t - g >= 0 && t - g < kDetrendVectors) sums[t - g] += value * weights[g * lanes];
    }
  }
}

// Weighted sums over at most 4 vectors of taps.
template <class T>
static SPECGRAD_INLINE void add_weighted_block(const T* x, const T* weights, int64_t taps,
                                               Vec<T>* sums) {
  const auto add = [&](int64_t groups, int64_t from, int64_t to) __attribute__((always_inline)) {
    with_constant<1, 2, 3, 4>(groups, SPECGRAD_EACH {
      for (int64_t shift = from; shift < to; ++shift) {
        accumulate_shift<index>(x + shift, weights + shift, sums);
      }
    });
  };
  const int64_t whole = taps / kLanes<T>, rest = taps % kLanes<T>;
  add(whole + 1, 0, rest);
  add(whole, rest, kLanes<T>);
}

// Weighted sums of `taps` neighbours, block by block so that rounding does not pile up.
template <class T>
struct WeightedSum {
  const T *x, *weights;
  int64_t taps;

  SPECGRAD_INLINE void at(int64_t i, Vec<T>* sums) const {
    constexpr int64_t block = 4 * kLanes<T>;
    std::fill_n(sums, kDetrendVectors, Vec<T>{});
    add_weighted_block(x + i, weights, std::min(taps, block), sums);
    for (int64_t first = block; first < taps; first += block) {
      Vec<T> part[kDetrendVectors] = {};
      add_weighted_block(x + i + first, weights + first, std::min(taps - first, block), part);
      for (int b = 0; b < kDetrendVectors; ++b) sums[b] += part[b];
    }
  }
};

// out = detrended samples [begin, begin + count) of d; `x` are the samples, `sum` is over their
// neighbours.
template <class T, class Sum>
static void subtract_sums(const DetrendTables<T>& plan, int64_t d, int64_t begin, int64_t count,
                          const T* x, const Sum& sum, T* out) {
  constexpr int lanes = kLanes<T>, block = kDetrendVectors * lanes;
  const int64_t radius = plan.radius;
  const bool box = plan.weights.empty(), counts = plan.boundary == Boundary::count;
  const auto one_sided = [&](int64_t reach) {
    return box ? static_cast<double>(reach) : plan.one_sided[reach];
  };
  const double centre = box ? 1 : static_cast<double>(plan.weights[radius]);
  const auto inside = [&](int64_t i) {
    return centre + one_sided(std::min(radius, i)) + one_sided(std::min(radius, d - 1 - i));
  };
  const T scale = box ? static_cast<T>(1.0 / static_cast<double>(2 * radius + 1)) : T(1);
  // Elsewhere part of the window lies outside, and `count` divides by the weights inside.
  const int64_t low = counts ? radius - begin : 0;
  const int64_t high = counts ? std::min(d - radius - begin, count) : count;
  // Not inlined: it would take registers from the loop.
  const auto part_of_block = [&](int64_t i) __attribute__((noinline)) {
    Vec<T> sums[kDetrendVectors];
    sum.at(i, sums);
    alignas(64) T single[block];
    repeat<kDetrendVectors>(SPECGRAD_EACH { store(single + index * lanes, sums[index]); });
    const int64_t stop = std::min(i + block, count);
    for (int64_t j = i; j < stop; ++j) out[j] = x[j] - scale * single[j - i];
    for (int64_t j = i; j < stop; ++j) {
      if (j < low || j >= high) out[j] = x[j] - static_cast<T>(single[j - i] / inside(begin + j));
    }
  };
  for (int64_t i = 0; i < count; i += block) {
    if (i < low || i + block > high) {
      part_of_block(i);
      continue;
    }
    Vec<T> sums[kDetrendVectors];
    sum.at(i, sums);
    const T* from = x + i;
    T* const to = out + i;
    repeat<kDetrendVectors>(SPECGRAD_EACH {
      store(to + index * lanes, load(from + index * lanes) - scale * sums[index]);
    });
  }
}

// Filters samples [begin, end). `left` and `right` are the `radius` original samples before and
// after them.
template <class T>
static void detrend(const DetrendTables<T>& plan, const Signal& signal, int64_t begin, int64_t end,
                    const T* left, const T* right, T* scratch) {
  const int64_t d = signal.layout->d, radius = plan.radius, tile = detrend_tile(radius);
  T* const extended = scratch;
  T* const filtered = extended + detrend_extent(radius, kLanes<T>);
  T* const work = filtered + tile;
  T* const centre = extended + radius;
  T* const direct = is_direct<T>(signal) ? static_cast<T*>(signal.data) : nullptr;
  std::copy(left, left + radius, extended);
  int64_t filled = begin;  // samples up to here are in `extended`
  for (int64_t a = begin; a < end; a += tile) {
    const int64_t count = std::min(tile, end - a), wanted = a + count + radius;
    const int64_t inside = std::min(wanted, end);
    if (filled < inside) {
      read_samples(signal, filled, inside, centre + (filled - a));
      filled = inside;
    }
    if (filled < wanted) {
      std::copy(right + (filled - end), right + (wanted - end), centre + (filled - a));
      filled = wanted;
    }
    T* const out = direct ? direct + a : filtered;
    if (plan.weights.empty()) {
      const MovingSum<T> sum(extended, count, radius, work);
      subtract_sums(plan, d, a, count, centre, sum, out);
    } else {
      const WeightedSum<T> sum{extended, plan.weights.data(), 2 * radius + 1};
      subtract_sums(plan, d, a, count, centre, sum, out);
    }
    if (!direct) write_samples(signal, a, a + count, filtered);
    std::copy(extended + count, extended + count + 2 * radius, extended);
  }
}

// Subtracts `averages` of samples [begin, end), in which samples beyond the ends of the signal are
// zeros: `count` divides by the weights inside, `replicate` adds those that the first and the last
// sample, `ends`, stand for.
template <class T>
static void subtract_averages(const WideTables<T>& plan, const Signal& signal, int64_t begin,
                              int64_t end, const T* averages, const T* ends) {
  const int64_t d = signal.layout->d, radius = plan.radius, piece = 1024;
  const bool counts = plan.boundary == Boundary::count;
  const bool meets_ends = counts || plan.boundary == Boundary::replicate;
  const double side = plan.one_sided.back();
  const auto near_end = [&](int64_t i, T average) {
    const double before = plan.one_sided[std::min(radius, i)];
    const double after = plan.one_sided[std::min(radius, d - 1 - i)];
    const double sum = counts ? average / (plan.centre + before + after)
                              : average + ends[0] * (side - before) + ends[1] * (side - after);
    return static_cast<T>(sum);
  };
  T* const direct = is_direct<T>(signal) ? static_cast<T*>(signal.data) : nullptr;
  alignas(64) T copy[piece];
  for (int64_t a = begin; a < end; a += piece, averages += piece) {
    const int64_t count = std::min(piece, end - a);
    T* const x = direct ? direct + a : copy;
    if (!direct) read_samples(signal, a, a + count, copy);
    if (meets_ends && (a < radius || a + count > d - radius)) {
      for (int64_t i = 0; i < count; ++i) x[i] -= near_end(a + i, averages[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) x[i] -= averages[i];
    }
    if (!direct) write_samples(signal, a, a + count, copy);
  }
}
