// Subtracting a local average in place, tile by tile. Included inside the namespace of an
// instruction set.
//
// A chunk of samples is handled by one thread. What lies beyond its two ends is saved before
// any chunk is written, so that no chunk sees another's result.

constexpr int64_t kDetrendTile = 4096;

// Where sample i of the extended signal comes from, or -1 for a zero.
static inline int64_t extended_index(int64_t i, int64_t d, int64_t radius, Boundary boundary) {
  if (i >= 0 && i < d) return i;
  switch (boundary) {
    case Boundary::count: return -1;
    case Boundary::circular: return ((i % d) + d) % d;
    case Boundary::reflect:
      if (radius < d) return i < 0 ? -i : 2 * (d - 1) - i;
      [[fallthrough]];
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
    const int64_t index = extended_index(i, d, plan.radius, plan.boundary);
    if (index < 0) {
      out[i - begin] = T(0);
    } else {
      read_samples(signal, index, index + 1, out + (i - begin));
    }
    ++i;
  }
}

// sums[i] = x[i] + ... + x[i + window - 1], by doubling: as accurate as a pairwise sum.
// `work` holds count + window - 1 numbers.
template <class T>
static void moving_sums(const T* x, int64_t count, int64_t window, T* sums, T* work) {
  const int64_t extended = count + window - 1;
  const T* level = x;  // sums of `width` neighbours
  int64_t offset = 0;
  bool started = false;
  for (int64_t width = 1; width <= window; width *= 2) {
    if (window & width) {
      const T* from = level + offset;
      if (started) {
        for (int64_t i = 0; i < count; ++i) sums[i] += from[i];
      } else {
        std::copy(from, from + count, sums);
      }
      started = true;
      offset += width;
    }
    if (2 * width > window) break;
    const int64_t valid = extended - 2 * width + 1;
    const T* other = level + width;
    if (level == x) {
      for (int64_t i = 0; i < valid; ++i) work[i] = x[i] + other[i];
    } else {
      // Ascending, each element is read before it is written.
#pragma GCC ivdep
      for (int64_t i = 0; i < valid; ++i) work[i] += work[i + width];
    }
    level = work;
  }
}

// sums[i] = weights . x[i ...], for count samples, a multiple of 4 vectors of padding allowed.
template <class T>
static void weighted_sums(const T* x, int64_t count, const T* weights, int64_t taps, T* sums) {
  constexpr int lanes = kLanes<T>;
  constexpr int unroll = 8;
  int64_t i = 0;
  for (; i + unroll * lanes <= count; i += unroll * lanes) {
    Vec<T> acc[unroll] = {};
    for (int64_t j = 0; j < taps; ++j) {
      const Vec<T> weight = broadcast(weights[j]);
      for (int u = 0; u < unroll; ++u) acc[u] += weight * load(x + i + j + u * lanes);
    }
    for (int u = 0; u < unroll; ++u) store(sums + i + u * lanes, acc[u]);
  }
  for (; i < count; ++i) {
    T acc = 0;
    for (int64_t j = 0; j < taps; ++j) acc += weights[j] * x[i + j];
    sums[i] = acc;
  }
}

template <class T>
static int64_t detrend_scratch(const DetrendPlan<T>& plan) {
  const int64_t tile = std::max(kDetrendTile, plan.radius);
  return 3 * tile + 4 * plan.radius + 4 * kLanes<T>;
}

// x -= smoothed over samples [begin, begin + count) of d.
template <class T>
static void subtract_average(const DetrendPlan<T>& plan, int64_t d, int64_t begin, int64_t count,
                             T* x, const T* sums) {
  const bool box = plan.weights.empty();
  const int64_t radius = plan.radius;
  const T inner = box ? T(1.0 / static_cast<double>(2 * radius + 1)) : T(1);
  const auto edge = [&](int64_t i) {
    const int64_t left = std::min(radius, begin + i);
    const int64_t right = std::min(radius, d - 1 - begin - i);
    const double inside = box ? static_cast<double>(left + right + 1)
                              : static_cast<double>(plan.weights[radius]) +
                                    plan.one_sided[left] + plan.one_sided[right];
    x[i] -= T(sums[i] / inside);
  };
  int64_t low = 0, high = count;
  if (plan.boundary == Boundary::count) {
    low = std::clamp<int64_t>(radius - begin, 0, count);
    high = std::clamp<int64_t>(d - radius - begin, low, count);
  }
  for (int64_t i = 0; i < low; ++i) edge(i);
  for (int64_t i = low; i < high; ++i) x[i] -= sums[i] * inner;
  for (int64_t i = high; i < count; ++i) edge(i);
}

// Filters samples [begin, end). `left` and `right` are the `radius` original samples before and
// after them.
template <class T>
static void detrend(const DetrendPlan<T>& plan, const Signal& signal, int64_t begin, int64_t end,
                    const T* left, const T* right, T* scratch) {
  const int64_t d = signal.layout->d, radius = plan.radius;
  const int64_t tile = std::max(kDetrendTile, radius);
  T* const extended = scratch;                 // tile + 2 * radius
  T* const sums = extended + tile + 2 * radius;  // tile
  T* const work = sums + tile;                 // tile + 2 * radius
  std::copy(left, left + radius, extended);
  int64_t filled = begin;  // samples [.., filled) beyond `left` are in `extended`
  for (int64_t a = begin; a < end;) {
    const int64_t count = std::min(tile, end - a);
    const int64_t wanted = a + count + radius;
    T* const centre = extended + radius;
    if (filled < std::min(wanted, end)) {
      read_samples(signal, filled, std::min(wanted, end), centre + (filled - a));
      filled = std::min(wanted, end);
    }
    if (filled < wanted) {
      std::copy(right + (filled - end), right + (wanted - end), centre + (filled - a));
      filled = wanted;
    }
    if (plan.weights.empty()) {
      moving_sums(extended, count, 2 * radius + 1, sums, work);
    } else {
      weighted_sums(extended, count, plan.weights.data(), 2 * radius + 1, sums);
    }
    std::copy(centre, centre + count, work);
    subtract_average(plan, d, a, count, work, sums);
    write_samples(signal, a, a + count, work);
    std::copy(extended + count, extended + count + 2 * radius, extended);
    a += count;
  }
}
