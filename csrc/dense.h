// Very short layers: the projector as an explicit orthonormal basis. Included inside the
// namespace of an instruction set.

// Lane sums of `blocks` times four vectors, halved like those of dot_vectors. `next` is memory of
// half that size that will be needed soon.
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

// While a signal is summed and while it is written, half of the one behind it is asked for: else
// the memory would idle as long as the caches are worked on.
template <class T>
static void subtract_mean(T* x, int64_t d) {
  constexpr int lanes = kLanes<T>, wide = 4 * lanes;
  const int64_t blocks = d / wide, whole = blocks * wide;
  const T* next = x + d;
  Vec<T> sums = sum_blocks<T>(x, next, blocks);
  int64_t end = whole;
  for (; end + lanes <= d; end += lanes) sums += load(x + end);
  T total = sum_lanes<T>(sums);
  for (; end < d; ++end) total += x[end];
  const T mean = total / static_cast<T>(d);
  for (int64_t i = 0; i < whole; i += wide) {
    prefetch(next + (whole + i) / 2);
    repeat<4>(SPECGRAD_EACH {
      T* p = x + i + index * lanes;
      store(p, load(p) - mean);
    });
  }
  for (int64_t i = whole; i < d; ++i) x[i] -= mean;
}

// `scratch` holds d + count numbers.
template <class T>
static void dense_filter(const DensePlan<T>& plan, const Signal& signal, T* scratch) {
  const int64_t d = signal.layout->d;
  const bool direct = is_direct<T>(signal);
  T* x = direct ? static_cast<T*>(signal.data) : scratch;
  T* coefficients = scratch + d;
  if (!direct) read_samples(signal, 0, d, x);
  if (plan.mean) subtract_mean(x, d);
  for (int64_t b = 0; b < plan.count; ++b) coefficients[b] = dot(plan.basis.data() + b * d, x, d);
  for (int64_t b = 0; b < plan.count; ++b) {
    const T* basis = plan.basis.data() + b * d;
    for (int64_t i = 0; i < d; ++i) x[i] -= coefficients[b] * basis[i];
  }
  if (!direct) write_samples(signal, 0, d, x);
}
