// Means of groups of samples, subtracted in place. Included inside the namespace of an instruction
// set.
//
// The order of additions follows from the logical shape alone, so that gradients of every layout
// have the bits of a contiguous one, and none is copied to be summed. A signal is rows of `columns`
// times `inner` samples. Sample i of a row is added to accumulator i % (slots * lanes), where there
// are `inner` slots, or 4 if that is 1: contiguous rows are read vector by vector, those whose
// columns are contiguous column by column, rows that lie side by side a vector of rows at a time.

constexpr int kMostSlots = 64;  // as _MOST_INNER in kinds/centralize.py
constexpr int64_t kBlocksInALeaf = 16;

// sums[s] = sum over blocks b of at(b, s), halved until few numbers are added one after the other.
template <int Slots, class T, class At>
static void sum_slots(int64_t first, int64_t blocks, int any_slots, Vec<T>* sums, const At& at) {
  const int slots = Slots ? Slots : any_slots;
  if (blocks > kBlocksInALeaf) {
    Vec<T> right[Slots ? Slots : kMostSlots];
    sum_slots<Slots, T>(first, blocks / 2, slots, sums, at);
    sum_slots<Slots, T>(first + blocks / 2, blocks - blocks / 2, slots, right, at);
    for (int s = 0; s < slots; ++s) sums[s] += right[s];
    return;
  }
  Vec<T> leaf[Slots ? Slots : kMostSlots];
  for (int s = 0; s < slots; ++s) leaf[s] = Vec<T>{};
  for (int64_t b = first; b < first + blocks; ++b) {
#pragma GCC unroll 9
    for (int s = 0; s < slots; ++s) leaf[s] += at(b, s);
  }
  for (int s = 0; s < slots; ++s) sums[s] = leaf[s];
}

template <class T, class At>
static SPECGRAD_INLINE void sum_any_slots(int64_t blocks, int slots, Vec<T>* sums, const At& at) {
  const bool known = with_constant<4, 9>(
      slots, SPECGRAD_EACH { sum_slots<index, T>(0, blocks, slots, sums, at); });
  if (!known) sum_slots<0, T>(0, blocks, slots, sums, at);
}

// Sum of slots `step` vectors apart, halved.
template <class T>
static Vec<T> fold_slots(const Vec<T>* sums, int slots, int step = 1) {
  if (slots == 1) return sums[0];
  const int half = slots / 2;
  return fold_slots<T>(sums, half, step) + fold_slots<T>(sums + half * step, slots - half, step);
}

// The sum of all lanes, and of the samples that make no whole block.
template <class T, class Form>
static T finish_sum(Form form, Vec<T> sums, const typename Form::Stored* rest, int64_t count) {
  for (; count >= kLanes<T>; count -= kLanes<T>, rest += kLanes<T>) sums += form.load(rest);
  T total = sum_lanes<T>(sums);
  for (int64_t i = 0; i < count; ++i) total += form.read(rest[i]);
  return total;
}

// Signals up to this length prefetch the one behind them.
constexpr int64_t kPrefetchedSamples = 1 << 15;

// Prefetches its own samples, or half as much from `next`.
template <class T, class Form>
static T sum_row(Form form, const typename Form::Stored* x, int64_t columns, int inner,
                 const typename Form::Stored* next = nullptr) {
  constexpr int lanes = kLanes<T>;
  const int slots = inner == 1 ? 4 : inner;
  const int64_t d = columns * inner, blocks = d / (slots * lanes);
  T total = 0;
  if (d < 2 * lanes) {
    for (int64_t i = 0; i < d; ++i) total += form.read(x[i]);
    return total;
  }
  if (!blocks) return finish_sum<T>(form, Vec<T>{}, x, d);
  Vec<T> sums[kMostSlots];
  sum_any_slots<T>(blocks, slots, sums, [=](int64_t b, int s) __attribute__((always_inline)) {
    const int64_t at = (b * slots + s) * lanes;
    if (s % kVectorsALine == 0 && !next) prefetch(x + at + kAhead<T>);
    if (s % (2 * kVectorsALine) == 0 && next) prefetch(next + at / 2);
    return form.load(x + at);
  });
  const int64_t done = blocks * slots * lanes;
  return finish_sum<T>(form, fold_slots<T>(sums, slots), x + done, d - done);
}

// Of a row whose sample (c, k) is x[offsets[k] + c].
template <class T, class Form>
static T sum_columns(Form form, const typename Form::Stored* x, int64_t columns, int inner,
                     const int64_t* offsets) {
  constexpr int lanes = kLanes<T>;
  const int64_t blocks = columns / lanes;
  const int slots = inner;
  Vec<T> sums[kMostSlots];
  sum_any_slots<T>(blocks, slots, sums, [=](int64_t b, int s) __attribute__((always_inline)) {
    return form.load(x + offsets[s] + b * lanes);
  });
  alignas(64) T by_slot[kMostSlots * kLanes<T>], ordered[kMostSlots * kLanes<T>];
  for (int s = 0; s < slots; ++s) store(by_slot + s * lanes, sums[s]);
  const auto reorder = [&](int each) __attribute__((always_inline)) {
    for (int c = 0; c < lanes; ++c) {
      for (int k = 0; k < each; ++k) ordered[c * each + k] = by_slot[k * lanes + c];
    }
  };
  if (!with_constant<9>(inner, SPECGRAD_EACH { reorder(index); })) reorder(inner);
  for (int s = 0; s < slots; ++s) sums[s] = load(ordered + s * lanes);
  const int64_t done = blocks * lanes;
  for (int64_t c = done; c < columns; ++c) {
    for (int k = 0; k < inner; ++k) ordered[(c - done) * inner + k] = form.read(x[offsets[k] + c]);
  }
  return finish_sum<T>(Plain<T>{}, fold_slots<T>(sums, slots), ordered, (columns - done) * inner);
}

// Of `Vectors` vectors of rows side by side, with samples `stride` apart.
template <int Vectors, class T, class Form>
static void sum_beside(Form form, const typename Form::Stored* x, int64_t columns, int64_t stride,
                       T* totals) {
  constexpr int lanes = kLanes<T>, width = 4 * lanes;
  const auto at = [=](int64_t b, int s) __attribute__((always_inline)) {
    return form.load(x + (b * width + s / Vectors) * stride + s % Vectors * lanes);
  };
  const int64_t whole = columns / width, vectors = columns % width / lanes;
  const int rest = static_cast<int>(columns % lanes);
  Vec<T> sums[width * Vectors];  // set where there are whole blocks
  if (whole) sum_slots<width * Vectors, T>(0, whole, 0, sums, at);
  for (int v = 0; v < Vectors; ++v) {
    Vec<T> total = {};
    for (int lane = 0; lane < lanes; ++lane) {
      Vec<T> sum = whole ? fold_slots<T>(sums + lane * Vectors + v, 4, lanes * Vectors) : Vec<T>{};
      for (int64_t i = 0; i < vectors; ++i) {
        sum += at(whole, (static_cast<int>(i) * lanes + lane) * Vectors + v);
      }
      if (columns >= lanes) total += sum;
    }
    for (int i = 0; i < rest; ++i) {
      total += at(whole, (static_cast<int>(vectors) * lanes + i) * Vectors + v);
    }
    store(totals + v * lanes, total);
  }
}

// Rows side by side that are summed together: a page of floats.
constexpr int64_t kMostBeside = 1024;

// sums[i] += x[i]
template <class T, class Form>
static SPECGRAD_INLINE void add_samples(Form form, const typename Form::Stored* x, int64_t count,
                                        T* sums) {
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) store(sums + i, load(sums + i) + form.load(x + i));
  for (; i < count; ++i) sums[i] += form.read(x[i]);
}

// sums[i] = sum over blocks b of x[b * step + i], halved as by sum_slots.
template <class T, class Form>
static void sum_blocks(Form form, const typename Form::Stored* x, int64_t blocks, int64_t step,
                       int64_t rows, T* sums) {
  if (blocks > kBlocksInALeaf) {
    alignas(64) T right[kMostBeside];
    sum_blocks(form, x, blocks / 2, step, rows, sums);
    sum_blocks(form, x + blocks / 2 * step, blocks - blocks / 2, step, rows, right);
    return add_samples(Plain<T>{}, right, rows, sums);
  }
  std::fill_n(sums, rows, T(0));
  for (int64_t b = 0; b < blocks; ++b) add_samples(form, x + b * step, rows, sums);
}

// Of many rows side by side. Columns lie on pages of their own, and to look up an address takes longer
// than to read a cache line: each column is visited once.
template <class T, class Form>
static void sum_many_beside(Form form, const typename Form::Stored* x, int64_t rows,
                            int64_t columns, int64_t stride, T* totals) {
  constexpr int lanes = kLanes<T>, width = 4 * lanes;
  const int64_t whole = columns / width, vectors = columns % width / lanes;
  alignas(64) T sums[4][kMostBeside];
  std::fill_n(totals, rows, T(0));
  for (int lane = 0; lane < lanes && columns >= lanes; ++lane) {
    for (int slot = 0; slot < 4; ++slot) {
      const auto* const first = x + (slot * lanes + lane) * stride;
      sum_blocks(form, first, whole, width * stride, rows, sums[slot]);
    }
    for (int64_t i = 0; i < rows; ++i) {
      sums[0][i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    }
    for (int64_t v = 0; v < vectors; ++v) {
      add_samples(form, x + (whole * width + v * lanes + lane) * stride, rows, sums[0]);
    }
    add_samples(Plain<T>{}, sums[0], rows, totals);
  }
  for (int64_t c = columns / lanes * lanes; c < columns; ++c) {
    add_samples(form, x + c * stride, rows, totals);
  }
}

// Sums of `rows` rows side by side, a vector or more. The last vector may repeat rows of the one
// before it.
template <class T, class Form>
static void sum_all_beside(Form form, const typename Form::Stored* x, int64_t rows,
                           int64_t columns, int64_t stride, T* totals) {
  constexpr int lanes = kLanes<T>, line = kVectorsALine * lanes;
  int64_t row = 0;
  for (; rows - row >= 128; row = std::min(rows, row + kMostBeside)) {
    const int64_t count = std::min(rows - row, kMostBeside);
    sum_many_beside(form, x + row, count, columns, stride, totals + row);
  }
  for (; row + line <= rows; row += line) {
    sum_beside<kVectorsALine>(form, x + row, columns, stride, totals + row);
  }
  for (; row < rows; row += lanes) {
    row = std::min(row, rows - lanes);
    sum_beside<1>(form, x + row, columns, stride, totals + row);
  }
}

// While a short signal is written, the other half of the one behind it is prefetched: else the
// memory would idle as long as the caches are worked on.
template <class T, class Form>
static void subtract(Form form, typename Form::Stored* x, int64_t d, T mean) {
  constexpr int lanes = kLanes<T>, wide = 4 * lanes;
  const bool is_long = d > kPrefetchedSamples;
  const int64_t whole = d / wide * wide;
  const auto subtract_vector = [=](int64_t at) __attribute__((always_inline)) {
    form.store(x + at, form.load(x + at) - mean);
  };
  int64_t i = 0;
  for (; i < whole; i += wide) {
    repeat<4>(SPECGRAD_EACH {
      const int64_t at = i + index * lanes;
      if (index % kVectorsALine == 0 && is_long) prefetch(x + at + kAhead<T>);
      if (index % (2 * kVectorsALine) == 0 && !is_long) prefetch(x + d + (whole + at) / 2);
      subtract_vector(at);
    });
  }
  for (; i + lanes <= d; i += lanes) subtract_vector(i);
  for (; i < d; ++i) x[i] = form.write(form.read(x[i]) - mean);
}

// Where sample i of a signal lies.
static inline int64_t offset_of(const Layout& layout, int64_t i) {
  int64_t offset = 0;
  for (int dim = layout.dims - 1; dim >= 0; --dim) {
    offset += i % layout.sizes[dim] * layout.strides[dim];
    i /= layout.sizes[dim];
  }
  return offset;
}

// One signal. `scratch` holds a row and the sums of all rows.
template <class T>
static void subtract_mean(const MeanTables& plan, const Signal& signal, T* scratch) {
  const Layout& layout = *signal.layout;
  const int64_t d = layout.d, columns = plan.columns, row = columns * plan.inner, rows = d / row;
  const int inner = plan.inner;
  T* const totals = scratch + row;
  const auto mean = [&] {
    const T total = rows == 1 ? totals[0] : sum_row<T>(Plain<T>{}, totals, rows, 1);
    return total / static_cast<T>(d);
  };
  const bool beside = inner == 1 && layout.dims == 2 && layout.strides[0] == 1 &&
                      layout.sizes[0] == rows && rows >= kLanes<T>;
  if (layout.contiguous() || beside || (inner > 1 && offset_of(layout, inner) == 1)) {
    return with_form<T>(layout.dtype, [&](auto form) {
      auto* const x = static_cast<typename decltype(form)::Stored*>(signal.data);
      if (layout.contiguous()) {
        const auto* next = rows == 1 && d <= kPrefetchedSamples ? x + d : nullptr;
        for (int64_t r = 0; r < rows; ++r) {
          totals[r] = sum_row<T>(form, x + r * row, columns, inner, next);
        }
        return subtract(form, x, d, mean());
      }
      if (beside) {
        const int64_t stride = layout.strides[1];
        sum_all_beside<T>(form, x, rows, columns, stride, totals);
        const T found = mean();
        for (int64_t c = 0; c < columns; ++c) subtract(form, x + c * stride, rows, found);
        return;
      }
      int64_t offsets[kMostSlots];
      for (int k = 0; k < inner; ++k) offsets[k] = offset_of(layout, k);
      const auto start = [&](int64_t r) { return x + offset_of(layout, r * row); };
      for (int64_t r = 0; r < rows; ++r) {
        totals[r] = sum_columns<T>(form, start(r), columns, inner, offsets);
      }
      const T found = mean();
      if (offset_of(layout, d - 1) == d - 1) return subtract(form, x, d, found);  // no gaps
      for (int64_t r = 0; r < rows; ++r) {
        auto* const first = start(r);
        for (int k = 0; k < inner; ++k) subtract(form, first + offsets[k], columns, found);
      }
    });
  }
  for (int64_t r = 0; r < rows; ++r) {
    read_samples(signal, r * row, (r + 1) * row, scratch);
    totals[r] = sum_row<T>(Plain<T>{}, scratch, columns, inner);
  }
  const T found = mean();
  for_each_run<T>(signal, 0, d, [&](auto form, auto* p, auto stride, int64_t n) {
    const auto each = [&](int64_t count) __attribute__((always_inline)) {
      for (int64_t i = 0; i < count; ++i) p[i * stride] = form.write(form.read(p[i * stride]) - found);
    };
    if (stride != 1) return each(n);
    if (!with_constant<9, 25>(n, SPECGRAD_EACH { each(index); })) subtract(form, p, n, found);
  });
}

// A run of signals. Those that lie side by side are summed together.
template <class T>
static void subtract_means(const MeanTables& plan, const Signal& run, T* scratch) {
  const Layout& layout = *run.layout;
  const int64_t d = layout.d;
  const T length = static_cast<T>(d);
  int64_t done = 0;
  with_form<T>(layout.dtype, [&](auto form) {
    using Stored = typename decltype(form)::Stored;
    Stored* const x = static_cast<Stored*>(run.data);
    if (layout.contiguous() && d < 2 * kLanes<T>) {
      const auto each = [&](int64_t count) __attribute__((always_inline)) {
        for (; done < run.count; ++done) {
          Stored* const p = reinterpret_cast<Stored*>(reinterpret_cast<char*>(x) + done * run.step);
          T total = 0;
          for (int64_t i = 0; i < count; ++i) total += form.read(p[i]);
          const T mean = total / length;
          for (int64_t i = 0; i < count; ++i) p[i] = form.write(form.read(p[i]) - mean);
        }
      };
      if (!with_constant<9>(d, SPECGRAD_EACH { each(index); })) each(d);
    } else if (run.count > 1 && run.step == sizeof(Stored) && layout.dims == 1 &&
               plan.inner == 1 && plan.columns == d) {
      alignas(64) T means[kMostBeside];
      const int64_t stride = layout.strides[0], fewest = d < 2 * kLanes<T> ? 1 : kLanes<T>;
      for (int64_t n; (n = std::min(kMostBeside, run.count - done)) >= fewest; done += n) {
        if (fewest == 1) {
          std::fill_n(means, n, T(0));
          for (int64_t c = 0; c < d; ++c) {
            for (int64_t i = 0; i < n; ++i) means[i] += form.read(x[done + c * stride + i]);
          }
        } else {
          sum_all_beside<T>(form, x + done, n, d, stride, means);
        }
        for (int64_t i = 0; i < n; ++i) means[i] /= length;
        for (int64_t c = 0; c < d; ++c) {
          Stored* const p = x + done + c * stride;
          int64_t i = 0;
          for (; i + kLanes<T> <= n; i += kLanes<T>) {
            form.store(p + i, form.load(p + i) - load(means + i));
          }
          for (; i < n; ++i) p[i] = form.write(form.read(p[i]) - means[i]);
        }
      }
    }
  });
  for (; done < run.count; ++done) {
    subtract_mean(plan, {run.layout, static_cast<char*>(run.data) + done * run.step}, scratch);
  }
}
