// Subtracting a local average in place, tile by tile. Included inside the namespace of an
// instruction set.
//
// A chunk of samples is handled by one thread. What lies beyond its two ends is saved before
// any chunk is written, so that no chunk sees another's result.

// Where sample i of the extended signal comes from, or -1 for a zero.
static inline int64_t extended_index(int64_t i, int64_t d, Boundary boundary) {
  if (i >= 0 && i < d) return i;
  switch (boundary) {
    case Boundary::count: return -1;
    case Boundary::circular: return ((i % d) + d) % d;
    case Boundary::reflect: return i < 0 ? -i : 2 * (d - 1) - i;
    case Boundary::replicate: return i < 0 ? 0 : d - 1;
  }
  return -1;
}

// Samples [begin, end) of the signal continued beyond its ends.
template <class T>
static void read_extended(const DetrendPlan<T>& plan, const Signal& signal, int64_t begin,
                          int64_t end, T* out) {
  const int64_t d = signal.layout->d;
  for (int64_t i = begin; i < end;) {
    if (i >= 0 && i < d) {
      const int64_t stop = std::min(end, d);
      read_samples(signal, i, stop, out + (i - begin));
      i = stop;
      continue;
    }
    const int64_t index = extended_index(i, d, plan.boundary);
    if (index < 0) {
      out[i - begin] = T(0);
    } else {
      read_samples(signal, index, index + 1, out + (i - begin));
    }
    ++i;
  }
}

// sums[k][i] = x[i] + ... + x[i + 2^(k+1) - 1] for every k whose array is wanted. From the last
// vector to the first, so that each step finds its right neighbour in a register.
template <int Width, class T>
static SPECGRAD_INLINE void double_width(Vec<T> sum, Vec<T>* right, T* const* sums, int64_t at) {
  if constexpr (Width < kLanes<T>) {
    const Vec<T> wider = sum + shift_lanes<Width, T>(sum, *right);
    *right = sum;
    if (*sums) store(*sums + at, wider);
    double_width<2 * Width, T>(wider, right + 1, sums + 1, at);
  }
}

template <class T>
constexpr int kDoublings = kLanes<T> == 16 ? 4 : kLanes<T> == 8 ? 3 : kLanes<T> == 4 ? 2 : 1;

template <class T>
static void sum_neighbours(const T* x, int64_t count, T* const (&wanted)[kDoublings<T>]) {
  T* sums[kDoublings<T>];  // a copy of its own, which no store can change
  std::copy(std::begin(wanted), std::end(wanted), sums);
  Vec<T> right[kDoublings<T>] = {};
  for (int64_t at = ceil_div(count, kLanes<T>) * kLanes<T>; (at -= kLanes<T>) >= 0;) {
    double_width<1, T>(load(x + at), right, sums, at);
  }
}

// A moving sum of `window` samples, as a few loads from sums of neighbours: the binary digits of
// the window below one vector, its digits in base 4 above, say how many of each. As accurate as
// a pairwise sum.
template <class T>
struct MovingSum {
  static constexpr int kMaxTerms = 1 + kDoublings<T> + 3 * 31;
  const T* terms[kMaxTerms];
  int count = 0;

  MovingSum(const T* x, int64_t length, int64_t window, T* work) {
    constexpr int lanes = kLanes<T>;
    const int64_t extended = length + window - 1;
    const int64_t level_size = moving_sum_level(length, window, lanes);
    const auto new_level = [&] { return std::exchange(work, work + level_size); };
    T* sums[kDoublings<T>] = {};
    constexpr int whole = kDoublings<T> - 1;
    int64_t end = window;  // the widest sums go first, where their loads are aligned
    const auto take = [&](const T* level, int64_t width) { terms[count++] = level + (end -= width); };
    if (window & 1) take(x, 1);
    for (int k = 0; k < whole; ++k) {
      if (window & (2 << k)) take(sums[k] = new_level(), 2 << k);
    }
    if (window >= lanes) sums[whole] = new_level();
    sum_neighbours(x, extended, sums);
    const T* level = sums[whole];
    for (int64_t width = lanes; width <= window; width *= 4) {
      if (width > lanes) {
        T* const wider = new_level();
        quadruple(level, width / 4, extended - width + 1, wider);
        level = wider;
      }
      for (int64_t digit = window / width % 4; digit > 0; --digit) take(level, width);
    }
  }

  T at(int64_t i) const {
    T sum = terms[0][i];
    for (int t = 1; t < count; ++t) sum += terms[t][i];
    return sum;
  }

 private:
  // sums[i] = x[i] + x[i + width] + x[i + 2 width] + x[i + 3 width]; may overrun by a vector.
  static void quadruple(const T* x, int64_t width, int64_t count, T* sums) {
    for (int64_t i = 0; i < count; i += kLanes<T>) {
      const T* p = x + i;
      store(sums + i, (load(p) + load(p + width)) + (load(p + 2 * width) + load(p + 3 * width)));
    }
  }
};

// out[i] = x[i] - scale * sum at i, for `count` samples, any number.
template <class T>
static void subtract_moving_sum(const MovingSum<T>& sum, const T* x, T scale, int64_t count,
                                T* out) {
  constexpr int lanes = kLanes<T>;
  constexpr int unroll = 4;
  int64_t i = 0;
  for (; i + unroll * lanes <= count; i += unroll * lanes) {
    Vec<T> sums[unroll];
    for (int u = 0; u < unroll; ++u) sums[u] = load(sum.terms[0] + i + u * lanes);
    for (int t = 1; t < sum.count; ++t) {
      for (int u = 0; u < unroll; ++u) sums[u] += load(sum.terms[t] + i + u * lanes);
    }
    for (int u = 0; u < unroll; ++u) {
      store(out + i + u * lanes, load(x + i + u * lanes) - scale * sums[u]);
    }
  }
  for (; i < count; ++i) out[i] = x[i] - scale * sum.at(i);
}

// acc[b] += sum over the first Groups of weights[g * lanes] * x[(b + g) * lanes], for the taps
// that share one shift: every vector that is loaded serves several outputs.
template <int Groups, int Outputs, class T>
static SPECGRAD_INLINE void accumulate_shift(const T* x, const T* weights, Vec<T>* acc) {
  constexpr int lanes = kLanes<T>;
#pragma GCC unroll 20
  for (int t = 0; t < Outputs + Groups - 1; ++t) {
    const Vec<T> value = load(x + t * lanes);
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) {
      if (t - g >= 0 && t - g < Outputs) acc[t - g] += value * weights[g * lanes];
    }
  }
}

template <int Groups, int Outputs, class T>
static SPECGRAD_INLINE void accumulate_shifts(const T* x, const T* weights, int from, int to, Vec<T>* acc) {
  for (int shift = from; shift < to; ++shift) {
    accumulate_shift<Groups, Outputs>(x + shift, weights + shift, acc);
  }
}

// Sums over at most 4 vectors of taps, for Outputs vectors.
template <int Outputs, class T>
static SPECGRAD_INLINE void weighted_block(const T* x, const T* weights, int64_t taps, Vec<T>* acc) {
  constexpr int lanes = kLanes<T>;
  const int rest = static_cast<int>(taps % lanes);
  switch (taps / lanes) {
    case 0: accumulate_shifts<1, Outputs>(x, weights, 0, rest, acc); break;
    case 1:
      accumulate_shifts<2, Outputs>(x, weights, 0, rest, acc);
      accumulate_shifts<1, Outputs>(x, weights, rest, lanes, acc);
      break;
    case 2:
      accumulate_shifts<3, Outputs>(x, weights, 0, rest, acc);
      accumulate_shifts<2, Outputs>(x, weights, rest, lanes, acc);
      break;
    case 3:
      accumulate_shifts<4, Outputs>(x, weights, 0, rest, acc);
      accumulate_shifts<3, Outputs>(x, weights, rest, lanes, acc);
      break;
    default: accumulate_shifts<4, Outputs>(x, weights, 0, lanes, acc);
  }
}

// Weighted sums of `taps` neighbours, block by block so that rounding does not pile up.
template <int Outputs, class T>
static SPECGRAD_INLINE void weighted_vectors(const T* x, const T* weights, int64_t taps, Vec<T>* acc) {
  constexpr int64_t block = 4 * kLanes<T>;
  weighted_block<Outputs>(x, weights, std::min(taps, block), acc);
  for (int64_t first = block; first < taps; first += block) {
    Vec<T> part[Outputs] = {};
    weighted_block<Outputs>(x + first, weights + first, std::min(taps - first, block), part);
    for (int b = 0; b < Outputs; ++b) acc[b] += part[b];
  }
}

// out[i] = x[i + radius] - weights . x[i ...], for `count` samples, any number.
template <class T>
static void subtract_weighted_sum(const DetrendPlan<T>& plan, const T* x, int64_t count, T* out) {
  constexpr int lanes = kLanes<T>;
  constexpr int outputs = SPECGRAD_VECTOR_BYTES == 64 ? 16 : 8;  // twice the registers
  const int64_t taps = static_cast<int64_t>(plan.weights.size());
  const T* weights = plan.weights.data();
  int64_t i = 0;
  for (; i + outputs * lanes <= count; i += outputs * lanes) {
    Vec<T> acc[outputs] = {};
    weighted_vectors<outputs>(x + i, weights, taps, acc);
    for (int b = 0; b < outputs; ++b) {
      store(out + i + b * lanes, load(x + i + plan.radius + b * lanes) - acc[b]);
    }
  }
  for (; i + lanes <= count; i += lanes) {
    Vec<T> acc[1] = {};
    weighted_vectors<1>(x + i, weights, taps, acc);
    store(out + i, load(x + i + plan.radius) - acc[0]);
  }
  for (; i < count; ++i) out[i] = x[i + plan.radius] - dot(weights, x + i, taps);
}

// Samples [0, low) and [high, count) of a tile are so near an end of the signal that part of
// their window lies outside.
struct Ends {
  int64_t low, high;

  Ends(int64_t radius, int64_t d, int64_t begin, int64_t count)
      : low(std::clamp<int64_t>(radius - begin, 0, count)),
        high(std::clamp<int64_t>(d - radius - begin, low, count)) {}
};

// There, `count` divides by the weights inside.
template <class T, class SumAt>
static void subtract_at_ends(const DetrendPlan<T>& plan, int64_t d, int64_t begin, int64_t count,
                             const T* x, SumAt sum_at, T* out) {
  const int64_t radius = plan.radius;
  const auto one_sided = [&](int64_t reach) {
    return plan.weights.empty() ? static_cast<double>(reach) : plan.one_sided[reach];
  };
  const double centre = plan.weights.empty() ? 1 : static_cast<double>(plan.weights[radius]);
  const auto correct = [&](int64_t i) {
    const double inside = centre + one_sided(std::min(radius, begin + i)) +
                          one_sided(std::min(radius, d - 1 - begin - i));
    out[i] = x[i] - static_cast<T>(sum_at(i) / inside);
  };
  const Ends ends(radius, d, begin, count);
  for (int64_t i = 0; i < ends.low; ++i) correct(i);
  for (int64_t i = ends.high; i < count; ++i) correct(i);
}

// out = detrended samples [begin, begin + count) of d; `extended` starts `radius` before them.
template <class T>
static void detrend_tile_into(const DetrendPlan<T>& plan, int64_t d, int64_t begin, int64_t count,
                              const T* extended, T* work, T* out) {
  const int64_t window = 2 * plan.radius + 1;
  const T* x = extended + plan.radius;
  const bool ends = plan.boundary == Boundary::count;
  if (plan.weights.empty()) {
    const MovingSum<T> sum(extended, count, window, work);
    subtract_moving_sum(sum, x, static_cast<T>(1.0 / static_cast<double>(window)), count, out);
    if (ends) {
      subtract_at_ends(plan, d, begin, count, x, [&](int64_t i) { return sum.at(i); }, out);
    }
    return;
  }
  subtract_weighted_sum(plan, extended, count, out);
  if (ends) {
    // The sums themselves: taking them from x - out would lose the digits that count here.
    const auto sum_range = [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; i += kLanes<T>) {
        Vec<T> sums[1] = {};
        weighted_vectors<1>(extended + i, plan.weights.data(), window, sums);
        store(work + i, sums[0]);
      }
    };
    const Ends near(plan.radius, d, begin, count);
    sum_range(0, near.low);
    sum_range(near.high, count);
    subtract_at_ends(plan, d, begin, count, x, [&](int64_t i) { return work[i]; }, out);
  }
}

// Filters samples [begin, end). `left` and `right` are the `radius` original samples before and
// after them.
template <class T>
static void detrend(const DetrendPlan<T>& plan, const Signal& signal, int64_t begin, int64_t end,
                    const T* left, const T* right, T* scratch) {
  const int64_t d = signal.layout->d, radius = plan.radius, tile = detrend_tile(radius);
  T* const extended = scratch;
  T* const filtered = extended + tile + 2 * radius + 2 * kLanes<T>;
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
    detrend_tile_into(plan, d, a, count, extended, work, out);
    if (!direct) write_samples(signal, a, a + count, filtered);
    std::copy(extended + count, extended + count + 2 * radius, extended);
  }
}
