// Reading and writing ranges of a signal as numbers of the computing precision. Included inside
// the namespace of an instruction set.

// How samples are stored: numbers of the computing precision read and written, one or a vector.
template <class T>
struct Plain {
  using Stored = T;
  static T read(T stored) { return stored; }
  static T write(T value) { return value; }
  static SPECGRAD_INLINE Vec<T> load(const T* p) { return SPECGRAD_ISA::load(p); }
  static SPECGRAD_INLINE void store(T* p, Vec<T> values) { SPECGRAD_ISA::store(p, values); }
};

struct BF16 {
  using Stored = uint16_t;
  typedef uint32_t Wide __attribute__((vector_size(SPECGRAD_VECTOR_BYTES)));
  typedef uint16_t Narrow __attribute__((vector_size(SPECGRAD_VECTOR_BYTES / 2)));

  static float read(uint16_t stored) {
    const uint32_t bits = static_cast<uint32_t>(stored) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  static uint16_t write(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  static SPECGRAD_INLINE Vec<float> load(const uint16_t* p) {
    Narrow stored;
    std::memcpy(&stored, p, sizeof(stored));
    return (Vec<float>)(__builtin_convertvector(stored, Wide) << 16);
  }
  static SPECGRAD_INLINE void store(uint16_t* p, Vec<float> values) {
    const Wide bits = (Wide)values, is_nan = (Wide)((bits & 0x7fffffff) > 0x7f800000);
    const Wide rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet = (bits >> 16) | 0x40;
    const Narrow stored = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), Narrow);
    std::memcpy(p, &stored, sizeof(stored));
  }
};

struct F16 {
#if defined(__aarch64__)
  using Stored = __fp16;  // GCC 12 has no _Float16 in C++ there
#else
  using Stored = _Float16;
#endif
  static float read(Stored stored) { return static_cast<float>(stored); }
  static Stored write(float value) { return static_cast<Stored>(value); }
  // GCC makes no vectors of these conversions.
#if SPECGRAD_VECTOR_BYTES == 64
  static SPECGRAD_INLINE Vec<float> load(const Stored* p) {
    return (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static SPECGRAD_INLINE void store(Stored* p, Vec<float> values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)values, 0));
  }
#elif SPECGRAD_VECTOR_BYTES == 32
  static SPECGRAD_INLINE Vec<float> load(const Stored* p) {
    return (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static SPECGRAD_INLINE void store(Stored* p, Vec<float> values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)values, 0));
  }
#else
  static SPECGRAD_INLINE Vec<float> load(const Stored* p) {
    Vec<float> values;
    for (int lane = 0; lane < kLanes<float>; ++lane) values[lane] = read(p[lane]);
    return values;
  }
  static SPECGRAD_INLINE void store(Stored* p, Vec<float> values) {
    for (int lane = 0; lane < kLanes<float>; ++lane) p[lane] = write(values[lane]);
  }
#endif
};

// visit(form) for the form of a dtype that is computed with as T.
template <class T, class Visit>
static inline auto with_form(DType dtype, Visit visit) {
  if constexpr (sizeof(T) == 4) {
    if (dtype == DType::bf16) return visit(BF16{});
    if (dtype == DType::f16) return visit(F16{});
  }
  return visit(Plain<T>{});
}

// Calls visit(form, stored pointer, stride, count) for the runs that make up samples [begin, end)
// of a signal that is computed with as T. A stride of 1 is a constant: those loops become vectors.
template <class T, class Visit>
static inline void for_each_run(const Signal& signal, int64_t begin, int64_t end, Visit visit) {
  const Layout& layout = *signal.layout;
  const int inner = layout.dims - 1;
  int64_t index[kMaxDims];
  int64_t rest = begin;
  for (int dim = inner; dim >= 0; --dim) {
    index[dim] = rest % layout.sizes[dim];
    rest /= layout.sizes[dim];
  }
  with_form<T>(layout.dtype, [&](auto form) {
    auto* const data = static_cast<typename decltype(form)::Stored*>(signal.data);
    const int middle = std::max(inner - 1, 0);  // runs of the last two dimensions need no index
    const int64_t step = inner ? layout.strides[middle] : 0;
    for (int64_t done = begin, skipped = index[inner]; done < end;) {
      auto* run = data;
      for (int dim = 0; dim < inner; ++dim) run += index[dim] * layout.strides[dim];
      for (int64_t left = inner ? layout.sizes[middle] - index[middle] : 1; left > 0 && done < end;
           --left, run += step, skipped = 0) {
        const int64_t count = std::min(layout.sizes[inner] - skipped, end - done);
        if (layout.strides[inner] == 1) {
          visit(form, run + skipped, std::integral_constant<int64_t, 1>{}, count);
        } else {
          visit(form, run + skipped * layout.strides[inner], layout.strides[inner], count);
        }
        done += count;
      }
      index[middle] = 0;
      for (int dim = middle - 1; dim >= 0; --dim) {
        if (++index[dim] < layout.sizes[dim]) break;
        index[dim] = 0;
      }
    }
  });
}

// Samples [begin, end), which must lie inside the signal. Not inlined: the loops of all dtypes would
// crowd the kernels that call them.
template <class T>
static __attribute__((noinline)) void read_samples(const Signal& signal, int64_t begin,
                                                   int64_t end, T* out) {
  for_each_run<T>(signal, begin, end, [&](auto form, const auto* p, auto stride, int64_t n) {
    const auto each = [&](int64_t count) __attribute__((always_inline)) {
      const int64_t whole = stride == 1 ? count / kLanes<T> * kLanes<T> : 0;
      for (int64_t i = 0; i < whole; i += kLanes<T>) store(out + i, form.load(p + i));
      for (int64_t i = whole; i < count; ++i) out[i] = form.read(p[i * stride]);
    };
    // rows of kernels are short
    if (stride != 1 || !with_constant<9, 25>(n, SPECGRAD_EACH { each(index); })) each(n);
    out += n;
  });
}

template <class T>
static __attribute__((noinline)) void write_samples(const Signal& signal, int64_t begin,
                                                    int64_t end, const T* values) {
  for_each_run<T>(signal, begin, end, [&](auto form, auto* p, auto stride, int64_t n) {
    const int64_t whole = stride == 1 ? n / kLanes<T> * kLanes<T> : 0;
    for (int64_t i = 0; i < whole; i += kLanes<T>) form.store(p + i, load(values + i));
    for (int64_t i = whole; i < n; ++i) p[i * stride] = form.write(values[i]);
    values += n;
  });
}

// Whether the kernels may work on the gradient's own memory.
template <class T>
static inline bool is_direct(const Signal& signal) {
  const DType own = sizeof(T) == 4 ? DType::f32 : DType::f64;
  return signal.layout->dtype == own && signal.layout->contiguous();
}

// Samples [begin, end) of the signal continued beyond its ends.
template <class T>
static void read_extended(const Signal& signal, Boundary boundary, int64_t begin, int64_t end,
                          T* out) {
  const int64_t d = signal.layout->d;
  for (int64_t i = begin, count; i < end; i += count, out += count) {
    count = std::min(end, i < 0 ? 0 : i < d ? d : end) - i;  // up to an end of the signal
    if (i >= 0 && i < d) {
      read_samples(signal, i, i + count, out);
    } else if (boundary == Boundary::count) {
      std::fill_n(out, count, T(0));
    } else if (boundary == Boundary::circular) {
      const int64_t from = ((i % d) + d) % d;
      count = std::min(count, d - from);
      read_samples(signal, from, from + count, out);
    } else if (boundary == Boundary::reflect) {
      const int64_t last = i + count - 1, from = i < 0 ? -last : 2 * (d - 1) - last;
      read_samples(signal, from, from + count, out);
      std::reverse(out, out + count);
    } else {
      const int64_t edge = i < 0 ? 0 : d - 1;
      read_samples(signal, edge, edge + 1, out);
      std::fill_n(out, count, *out);
    }
  }
}
