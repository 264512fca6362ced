// Very short layers: the projector as an explicit orthonormal basis. Included inside the
// namespace of an instruction set.

// Lane sums of whole vectors, halved like those of dot_vectors.
template <class T>
static Vec<T> sum_vectors(const T* a, int64_t vectors) {
  constexpr int lanes = kLanes<T>;
  if (vectors > 64) {
    const int64_t half = vectors / 8 * 4;
    return sum_vectors(a, half) + sum_vectors(a + half * lanes, vectors - half);
  }
  Vec<T> sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= vectors; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] += load(a + (i + j) * lanes);
  }
  for (; i < vectors; ++i) sums[0] += load(a + i * lanes);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
static void subtract_mean(T* x, int64_t d) {
  constexpr int lanes = kLanes<T>;
  const int64_t vectors = d / lanes;
  alignas(64) T parts[lanes];
  store(parts, sum_vectors(x, vectors));
  T total = 0;
  for (int lane = 0; lane < lanes; ++lane) total += parts[lane];
  for (int64_t i = vectors * lanes; i < d; ++i) total += x[i];
  const T mean = total / static_cast<T>(d);
  for (int64_t i = 0; i < d; ++i) x[i] -= mean;
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
