// Reading and writing ranges of a signal as numbers of the computing precision. Included inside
// the namespace of an instruction set.

static inline float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

static inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Exact by construction: a half is an integer of 11 bits times a power of two.
static inline float from_f16(uint16_t bits) {
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  uint32_t wide;
  if (exponent == 0x1f) {
    wide = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent != 0) {
    wide = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&wide, &magnitude, 4);
    wide |= sign;
  }
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
#endif
}

static inline uint16_t to_f16(float value) {
#ifdef __F16C__
  return static_cast<uint16_t>(_cvtss_sh(value, 0));
#else
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the mantissa.
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  bits += 0xfff + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((bits - 0x38000000) >> 13));
#endif
}

struct AsF32 {
  using Stored = float;
  static float read(float x) { return x; }
  static float write(float x) { return x; }
};
struct AsF64 {
  using Stored = double;
  static double read(double x) { return x; }
  static double write(double x) { return x; }
};
struct AsBF16 {
  using Stored = uint16_t;
  static float read(uint16_t x) { return from_bf16(x); }
  static uint16_t write(float x) { return to_bf16(x); }
};
struct AsF16 {
  using Stored = uint16_t;
  static float read(uint16_t x) { return from_f16(x); }
  static uint16_t write(float x) { return to_f16(x); }
};

// Calls visit(stored pointer, stride, count) for the runs that make up samples [begin, end).
template <class Stored, class Visit>
static inline void for_each_run(const Signal& signal, int64_t begin, int64_t end, Visit visit) {
  const Layout& layout = *signal.layout;
  Stored* data = static_cast<Stored*>(signal.data);
  const int inner = layout.dims - 1;
  int64_t index[kMaxDims];
  int64_t rest = begin;
  for (int dim = inner; dim >= 0; --dim) {
    index[dim] = rest % layout.sizes[dim];
    rest /= layout.sizes[dim];
  }
  for (int64_t done = begin; done < end;) {
    int64_t offset = 0;
    for (int dim = 0; dim <= inner; ++dim) offset += index[dim] * layout.strides[dim];
    const int64_t count = std::min(layout.sizes[inner] - index[inner], end - done);
    visit(data + offset, layout.strides[inner], count);
    done += count;
    index[inner] = 0;
    for (int dim = inner - 1; dim >= 0; --dim) {
      if (++index[dim] < layout.sizes[dim]) break;
      index[dim] = 0;
    }
  }
}

template <class As, class T>
static void read_as(const Signal& signal, int64_t begin, int64_t end, T* out) {
  using Stored = typename As::Stored;
  for_each_run<const Stored>(signal, begin, end, [&](const Stored* p, int64_t stride, int64_t n) {
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = As::read(p[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = As::read(p[i * stride]);
    }
    out += n;
  });
}

template <class As, class T>
static void write_as(const Signal& signal, int64_t begin, int64_t end, const T* values) {
  using Stored = typename As::Stored;
  for_each_run<Stored>(signal, begin, end, [&](Stored* p, int64_t stride, int64_t n) {
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) p[i] = As::write(values[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) p[i * stride] = As::write(values[i]);
    }
    values += n;
  });
}

// Samples [begin, end), which must lie inside the signal.
static inline void read_samples(const Signal& signal, int64_t begin, int64_t end, float* out) {
  switch (signal.layout->dtype) {
    case DType::f32: return read_as<AsF32>(signal, begin, end, out);
    case DType::bf16: return read_as<AsBF16>(signal, begin, end, out);
    case DType::f16: return read_as<AsF16>(signal, begin, end, out);
    case DType::f64: return;  // computed in double
  }
}
static inline void read_samples(const Signal& signal, int64_t begin, int64_t end, double* out) {
  read_as<AsF64>(signal, begin, end, out);
}
static inline void write_samples(const Signal& signal, int64_t begin, int64_t end,
                                 const float* values) {
  switch (signal.layout->dtype) {
    case DType::f32: return write_as<AsF32>(signal, begin, end, values);
    case DType::bf16: return write_as<AsBF16>(signal, begin, end, values);
    case DType::f16: return write_as<AsF16>(signal, begin, end, values);
    case DType::f64: return;
  }
}
static inline void write_samples(const Signal& signal, int64_t begin, int64_t end,
                                 const double* values) {
  write_as<AsF64>(signal, begin, end, values);
}

// Whether the kernels may work on the gradient's own memory.
template <class T>
static inline bool is_direct(const Signal& signal) {
  const DType own = sizeof(T) == 4 ? DType::f32 : DType::f64;
  return signal.layout->dtype == own && signal.layout->contiguous();
}

// Samples [begin, end) of the signal continued periodically.
template <class T>
static inline void read_circular(const Signal& signal, int64_t begin, int64_t end, T* out) {
  const int64_t d = signal.layout->d;
  while (begin < end) {
    const int64_t start = ((begin % d) + d) % d;
    const int64_t count = std::min(d - start, end - begin);
    read_samples(signal, start, start + count, out);
    begin += count;
    out += count;
  }
}
