// Very short layers: the projector as an explicit orthonormal basis. Included inside the
// namespace of an instruction set.

// Lane sums of `blocks` times four vectors, halved like those of dot_vectors. Prefetches half as much
// from `next`.
template <class T>
static Vec<T> sum_blocks(const T* x, const T* next, int64_t blocks) {
  constexpr int wide = 4 * kLanes<T>;
  if (blocks > 16) {
    const int64_t half = blocks / 2;
    return sum_blocks(x, next, half) +
           sum_blocks(x + half * wide, next + half * wide / 2, blocks - half);
  }
  Vec<T> sums[4] = {};
  for (int64_t i = 0; i < blocks; ++i, x += wide, next += wide / 2) {
    prefetch(next);
    repeat<4>(SPECGRAD_EACH { sums[index] += load(x + index * kLanes<T>); });
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
static T mean_of(const T* x, const T* next, int64_t d) {
  constexpr int lanes = kLanes<T>, wide = 4 * lanes;
  Vec<T> sums = sum_blocks<T>(x, next, d / wide);
  int64_t end = d / wide * wide;
  for (; end + lanes <= d; end += lanes) sums += load(x + end);
  T total = sum_lanes<T>(sums);
  for (; end < d; ++end) total += x[end];
  return total / static_cast<T>(d);
}

// Signals up to this length prefetch the one behind them.
constexpr int64_t kPrefetchedSamples = 1 << 15;

// While a short signal is summed and while it is written, half of the one behind it is prefetched:
// else the memory would idle as long as the caches are worked on.
template <class T>
static void subtract_mean(T* x, int64_t d) {
  constexpr int lanes = kLanes<T>, wide = 4 * lanes;
  const int64_t whole = d / wide * wide;
  const T* next = d <= kPrefetchedSamples ? x + d : x;
  const T mean = mean_of(x, next, d);
  for (int64_t i = 0; i < whole; i += wide) {
    prefetch(next + (whole + i) / 2);
    repeat<4>(SPECGRAD_EACH {
      T* p = x + i + index * lanes;
      store(p, load(p) - mean);
    });
  }
  for (int64_t i = whole; i < d; ++i) x[i] -= mean;
}

// A mean that outweighs the rest leaves before the filter that would remove it, and rounds nothing
// there. Eight samples say whether there is one. Halves, which could not hold what is left of it,
// are filtered as they are.
template <class T>
static void subtract_large_mean(const Signal& signal) {
  const int64_t d = signal.layout->d;
  T* const direct = is_direct<T>(signal) ? static_cast<T*>(signal.data) : nullptr;
  if (element_size(signal.layout->dtype) != sizeof(T)) return;
  alignas(64) T copy[1024];
  read_samples(signal, 0, 1, copy);
  T low = copy[0], high = copy[0];
  for (int64_t i = 1; i < 8; ++i) {
    read_samples(signal, i * d / 8, i * d / 8 + 1, copy);
    low = std::min(low, copy[0]);
    high = std::max(high, copy[0]);
    if (!(5 * (high - low) < 3 * std::abs(low + high))) return;  // 4 times as large, or more
  }
  const auto for_each_piece = [&](auto visit) {
    for (int64_t begin = 0; begin < d; begin += 1024) {
      const int64_t count = std::min<int64_t>(1024, d - begin);
      if (!direct) read_samples(signal, begin, begin + count, copy);
      visit(begin, count, direct ? direct + begin : copy);
    }
  };
  double mean = 0;
  for_each_piece([&](int64_t, int64_t count, const T* x) {
    mean += static_cast<double>(mean_of(x, x + count, count)) * (static_cast<double>(count) / d);
  });
  if (!std::isfinite(mean)) return;
  const T rounded = static_cast<T>(mean);
  for_each_piece([&](int64_t begin, int64_t count, T* x) {
    for (int64_t i = 0; i < count; ++i) x[i] -= rounded;
    if (!direct) write_samples(signal, begin, begin + count, x);
  });
}

// Filters each signal of a run. `scratch` holds d + plan.count numbers.
template <class T>
static void dense_filter(const DensePlan<T>& plan, const Signal& run, T* scratch) {
  const int64_t d = run.layout->d;
  const bool direct = is_direct<T>(run);
  T* coefficients = scratch + d;
  for (int64_t number = 0; number < run.count; ++number) {
    const Signal signal = {run.layout, static_cast<char*>(run.data) + number * run.step};
    T* x = direct ? static_cast<T*>(signal.data) : scratch;
    if (!direct) read_samples(signal, 0, d, x);
    if (plan.mean) subtract_mean(x, d);
    for (int64_t b = 0; b < plan.count; ++b) coefficients[b] = dot(plan.basis.data() + b * d, x, d);
    for (int64_t b = 0; b < plan.count; ++b) {
      const T* basis = plan.basis.data() + b * d;
      for (int64_t i = 0; i < d; ++i) x[i] -= coefficients[b] * basis[i];
    }
    if (!direct) write_samples(signal, 0, d, x);
  }
}
