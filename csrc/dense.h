// Very short layers: the projector as an explicit orthonormal basis. Included inside the
// namespace of an instruction set.

template <class T>
static inline T dot(const T* a, const T* b, int64_t n) {
  constexpr int lanes = kLanes<T>;
  Vec<T> sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    sums[0] += load(a + i) * load(b + i);
    sums[1] += load(a + i + lanes) * load(b + i + lanes);
  }
  alignas(64) T parts[lanes];
  store(parts, sums[0] + sums[1]);
  T total = 0;
  for (int lane = 0; lane < lanes; ++lane) total += parts[lane];
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

// `scratch` holds d + count numbers.
template <class T>
static void dense_filter(const DensePlan<T>& plan, const Signal& signal, T* scratch) {
  const int64_t d = signal.layout->d;
  const bool direct = is_direct<T>(signal);
  T* x = direct ? static_cast<T*>(signal.data) : scratch;
  T* coefficients = scratch + d;
  if (!direct) read_samples(signal, 0, d, x);
  for (int64_t b = 0; b < plan.count; ++b) coefficients[b] = dot(plan.basis.data() + b * d, x, d);
  for (int64_t b = 0; b < plan.count; ++b) {
    const T* basis = plan.basis.data() + b * d;
    for (int64_t i = 0; i < d; ++i) x[i] -= coefficients[b] * basis[i];
  }
  if (!direct) write_samples(signal, 0, d, x);
}
