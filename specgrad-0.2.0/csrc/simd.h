// Vectors of the instruction set a file is compiled for. Included inside its namespace.

// Where a call would push accumulators out of their registers.
#undef SPECGRAD_INLINE
#define SPECGRAD_INLINE inline __attribute__((always_inline))

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(SPECGRAD_VECTOR_BYTES)));
  typedef T loose
      __attribute__((vector_size(SPECGRAD_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
};

template <class T>
using Vec = typename VectorOf<T>::type;

template <class T>
constexpr int kLanes = SPECGRAD_VECTOR_BYTES / static_cast<int>(sizeof(T));

// Registers that hold vectors.
#if defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = SPECGRAD_VECTOR_BYTES == 64 ? 32 : 16;
#endif

template <class F, int... I>
static SPECGRAD_INLINE void repeat_each(F&& f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>{}), ...);
}

// f(0) .. f(N - 1) with constants as arguments: arrays they index become registers.
template <int N, class F>
static SPECGRAD_INLINE void repeat(F&& f) {
  repeat_each(f, std::make_integer_sequence<int, N>{});
}
#undef SPECGRAD_EACH
#define SPECGRAD_EACH [&](auto index) __attribute__((always_inline))

// f of the one of `Known` that `value` equals, as a constant; false if it is none of them.
template <int... Known, class F>
static SPECGRAD_INLINE bool with_constant(int64_t value, F&& f) {
  return ((value == Known && (f(std::integral_constant<int, Known>{}), true)) || ...);
}

template <class T>
static inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T>::loose*>(p);
}

// Asks for memory that will be needed; may lie beyond the end of what is there.
template <class T>
static SPECGRAD_INLINE void prefetch(const T* p) {
  __builtin_prefetch(p);
}
// Numbers by which that runs ahead of a sweep, and vectors that one request covers.
template <class T>
constexpr int kAhead = 4096 / static_cast<int>(sizeof(T));
constexpr int kVectorsALine = 64 / SPECGRAD_VECTOR_BYTES;

template <class T>
static inline void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VectorOf<T>::loose*>(p) = v;
}

// First or second half of a butterfly that exchanges blocks of S lanes between two vectors.
template <int S, bool High, class V, size_t... I>
static inline V exchange_lanes(V a, V b, std::index_sequence<I...>) {
  constexpr int n = sizeof...(I);
  return __builtin_shufflevector(
      a, b,
      (High ? ((int(I) & S) ? n + int(I) : int(I) + S)
            : ((int(I) & S) ? n + int(I) - S : int(I)))...);
}

template <int S, bool High, class T>
static inline Vec<T> exchange(Vec<T> a, Vec<T> b) {
  return exchange_lanes<S, High>(a, b, std::make_index_sequence<kLanes<T>>{});
}

template <int S, class V, size_t... I>
static inline V shift_lanes_step(V a, V b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (int(I) + S)...);
}

// The lanes of `a` from lane S on, then the first S of `b`.
template <int S, class T>
static inline Vec<T> shift_lanes(Vec<T> a, Vec<T> b) {
  return shift_lanes_step<S>(a, b, std::make_index_sequence<kLanes<T>>{});
}

template <class T, int S>
static inline void transpose_step(Vec<T>* rows) {
  if constexpr (S >= 1) {
    for (int i = 0; i < kLanes<T>; ++i) {
      if (i & S) continue;
      const Vec<T> a = rows[i], b = rows[i + S];
      rows[i] = exchange<S, false, T>(a, b);
      rows[i + S] = exchange<S, true, T>(a, b);
    }
    transpose_step<T, S / 2>(rows);
  }
}

// rows[i][j] <-> rows[j][i], for kLanes rows.
template <class T>
static inline void transpose(Vec<T>* rows) {
  transpose_step<T, kLanes<T> / 2>(rows);
}

template <class T, int S>
static inline Vec<T> sum_rows_step(Vec<T>* rows) {
  for (int i = 0; i < S; ++i) {
    rows[i] = exchange<S, false, T>(rows[i], rows[i + S]) +
              exchange<S, true, T>(rows[i], rows[i + S]);
  }
  if constexpr (S > 1) return sum_rows_step<T, S / 2>(rows);
  return rows[0];
}

// Lane i of the result is the sum of the lanes of rows[i].
template <class T>
static inline Vec<T> sum_rows(Vec<T>* rows) {
  return sum_rows_step<T, kLanes<T> / 2>(rows);
}

// Lane sums of the products of whole vectors. Long sums are halved until few products are added
// one after the other: rounding then grows with the logarithm of their number.
template <class T>
static Vec<T> dot_vectors(const T* a, const T* b, int64_t vectors) {
  constexpr int lanes = kLanes<T>;
  if (vectors > 32) {
    const int64_t half = vectors / 2;
    return dot_vectors(a, b, half) +
           dot_vectors(a + half * lanes, b + half * lanes, vectors - half);
  }
  Vec<T> sums[2] = {};
  int64_t i = 0;
  for (; i + 2 <= vectors; i += 2) {
    sums[0] += load(a + i * lanes) * load(b + i * lanes);
    sums[1] += load(a + (i + 1) * lanes) * load(b + (i + 1) * lanes);
  }
  if (i < vectors) sums[0] += load(a + i * lanes) * load(b + i * lanes);
  return sums[0] + sums[1];
}

template <class T>
static inline T sum_lanes(Vec<T> v) {
  T total = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane) total += v[lane];
  return total;
}

template <class T>
static inline T dot(const T* a, const T* b, int64_t n) {
  const int64_t vectors = n / kLanes<T>;
  T total = sum_lanes<T>(dot_vectors(a, b, vectors));
  for (int64_t i = vectors * kLanes<T>; i < n; ++i) total += a[i] * b[i];
  return total;
}
