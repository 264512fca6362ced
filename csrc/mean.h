// Means of groups of samples, subtracted in place. Included inside the namespace of an instruction
// set.
//
// The order of additions follows from the logical shape alone, so that gradients of every layout
// have the bits of a contiguous one, and none is copied to be summed. A signal is rows of `columns`
// times `inner` samples. Sample i of a row is added to accumulator i % (slots * lanes), where there
// are `inner` slots, or 4 if that is 1: contiguous rows are read vector by vector, those whose
// columns are contiguous column by column, rows that lie side by side a vector of rows at a time.

constexpr int kMostSlots = 64;  // as _MOST_INNER in kinds/centralize.py

// Rows side by side that are summed together.
template <class T>
constexpr int64_t kMostBeside = most_beside(kLanes<T>, sizeof(T));

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

template <class T>
static Vec<T> fold_slots(const Vec<T>* sums, int slots) {
  if (slots == 1) return sums[0];
  return fold_slots<T>(sums, slots / 2) + fold_slots<T>(sums + slots / 2, slots - slots / 2);
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

// sums[k] += vector k of columns `step` apart, one column after the other; with First, sums begin at
// zero, whatever they hold. The last vector repeats rows of the one before it, so that none reaches
// beyond the rows.
template <bool First = false, class T, class Form>
static void add_columns(Form form, const typename Form::Stored* x, int64_t columns, int64_t step,
                        int64_t rows, int64_t ahead, T* sums) {
  bool fresh = First;
  if (rows < kLanes<T>) {
    if (fresh) std::fill_n(sums, rows, T(0));
    for (; columns > 0; --columns, x += step) {
      for (int64_t i = 0; i < rows; ++i) sums[i] += form.read(x[i]);
    }
  }
  for (; columns > 0; columns -= 4, x += 4 * step, fresh = false) {
    with_constant<1, 2, 3, 4>(std::min<int64_t>(columns, 4), [&](auto count) {
      for (int64_t i = 0; i < rows; i += kLanes<T>) {
        const auto* const p = x + std::min(i, rows - kLanes<T>);
        Vec<T> sum = fresh ? Vec<T>{} : load(sums + i);
        repeat<count>(SPECGRAD_EACH {
          prefetch(p + index * step + ahead);
          sum += form.load(p + index * step);
        });
        store(sums + i, sum);
      }
    });
  }
}

// sums[w * pitch + i] = sum over blocks b of x[(b * width + w) * stride + i], halved as by sum_slots.
// Every page is visited once: to look up its address can take longer than to read it.
template <class T, class Form>
static void sum_blocks(Form form, const typename Form::Stored* x, int64_t blocks, int64_t stride,
                       int64_t rows, int64_t ahead, T* sums) {
  constexpr int64_t width = 4 * kLanes<T>;
  const int64_t pitch = whole_vectors(rows, kLanes<T>);
  if (blocks > kBlocksInALeaf) {
    const int64_t half = blocks / 2;
    T* const right = sums + width * pitch;
    sum_blocks(form, x, half, stride, rows, ahead, sums);
    sum_blocks(form, x + half * width * stride, blocks - half, stride, rows, ahead, right);
    return add_columns(Plain<T>{}, right, 1, 0, width * pitch, 0, sums);
  }
  for (int64_t w = 0; w < width; ++w) {
    add_columns<true>(form, x + w * stride, blocks, width * stride, rows, ahead, sums + w * pitch);
  }
}

// Numbers from a column to the one that is a page ahead.
template <class Stored>
static int64_t columns_ahead(int64_t rows, int64_t stride) {
  return ceil_div(kAhead<Stored>, rows) * stride;
}

// Sums of at most kMostBeside rows side by side, returned in the first of `memory`.
template <class T, class Form>
static T* sum_beside(Form form, const typename Form::Stored* x, int64_t rows, int64_t columns,
                     int64_t stride, T* memory) {
  constexpr int lanes = kLanes<T>;
  constexpr int64_t width = 4 * lanes;
  const int64_t pitch = whole_vectors(rows, lanes), slot = lanes * pitch;
  const int64_t ahead = columns_ahead<typename Form::Stored>(rows, stride);
  const int64_t rest = columns < 2 * lanes ? columns : columns % lanes;
  T *const totals = memory, *const sums = memory + pitch;
  std::fill_n(totals, pitch, T(0));
  if (rest < columns) {
    const int64_t whole = columns / width, vectors = columns % width / lanes;
    std::fill_n(sums, slot, T(0));
    if (whole) {
      sum_blocks(form, x, whole, stride, rows, ahead, sums);
      for (int64_t i = 0; i < slot; ++i) {
        sums[i] = (sums[i] + sums[i + slot]) + (sums[i + 2 * slot] + sums[i + 3 * slot]);
      }
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const auto* const first = x + (whole * width + lane) * stride;
      add_columns(form, first, vectors, lanes * stride, rows, ahead, sums + lane * pitch);
    }
    add_columns(Plain<T>{}, sums, lanes, pitch, pitch, 0, totals);
  }
  add_columns(form, x + (columns - rest) * stride, rest, stride, rows, ahead, totals);
  if (rows >= lanes) store(totals + rows - lanes, load(totals + pitch - lanes));
  return totals;
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

// x[i] -= means[i], in whole vectors from the first cache line on. The first and the last vector are
// computed before what they share with others is written.
template <class T, class Form>
static void subtract_each(Form form, typename Form::Stored* x, int64_t count, int64_t ahead,
                          const T* means) {
  constexpr int lanes = kLanes<T>;
  const int64_t last = count - lanes;
  if (last < 0) {
    for (int64_t i = 0; i < count; ++i) x[i] = form.write(form.read(x[i]) - means[i]);
    return;
  }
  const auto left = [&](int64_t i) { return form.load(x + i) - load(means + i); };
  const Vec<T> first_left = left(0), last_left = left(last);
  const intptr_t into_line = reinterpret_cast<intptr_t>(x) % (lanes * sizeof(*x)) / sizeof(*x);
  for (int64_t i = lanes - into_line; i < last; i += lanes) {
    prefetch(x + i + ahead);
    form.store(x + i, left(i));
  }
  form.store(x, first_left);
  form.store(x + last, last_left);
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

// Samples 0, 1, ... of a column lie at `offsets`, where columns follow each other. `scratch` holds a
// row and the sums of all rows, and memory for sum_beside.
template <class T>
static T mean_of(const MeanTables& plan, const Signal& signal, const int64_t* offsets, T* scratch) {
  const Layout& layout = *signal.layout;
  const int64_t d = layout.d, columns = plan.columns, row = columns * plan.inner, rows = d / row;
  const int inner = plan.inner;
  T* const totals = scratch + row;
  const bool beside = inner == 1 && layout.dims == 2 && layout.strides[0] == 1 &&
                      layout.sizes[0] == rows;
  with_form<T>(layout.dtype, [&](auto form) {
    auto* const x = static_cast<typename decltype(form)::Stored*>(signal.data);
    if (beside) {
      T* const memory = scratch + whole_vectors(row + rows, kLanes<T>);
      for (int64_t r = 0, n; r < rows; r += n) {
        n = std::min(rows - r, kMostBeside<T>);
        std::copy_n(sum_beside(form, x + r, n, columns, layout.strides[1], memory), n, totals + r);
      }
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (layout.contiguous()) {
        totals[r] = sum_row<T>(form, x + r * row, columns, inner);
      } else if (offsets) {
        totals[r] = sum_columns<T>(form, x + offset_of(layout, r * row), columns, inner, offsets);
      } else {
        read_samples(signal, r * row, (r + 1) * row, scratch);
        totals[r] = sum_row<T>(Plain<T>{}, scratch, columns, inner);
      }
    }
  });
  const T total = rows == 1 ? totals[0] : sum_row<T>(Plain<T>{}, totals, rows, 1);
  return total / static_cast<T>(d);
}

template <class T>
static void subtract_from(const Signal& signal, T mean) {
  for_each_run<T>(signal, 0, signal.layout->d, [&](auto form, auto* p, auto stride, int64_t n) {
    const auto each = [&](int64_t count) __attribute__((always_inline)) {
      for (int64_t i = 0; i < count; ++i) p[i * stride] = form.write(form.read(p[i * stride]) - mean);
    };
    if (stride != 1) return each(n);
    if (!with_constant<9, 25>(n, SPECGRAD_EACH { each(index); })) subtract(form, p, n, mean);
  });
}

// Contiguous signals of one row. Short ones are summed together before any is written: their sums do
// not wait for each other.
template <class T, class Form>
static void subtract_rows(Form form, const MeanTables& plan, const Signal& run) {
  using Stored = typename Form::Stored;
  const int64_t d = run.layout->d, together = std::clamp<int64_t>((1 << 12) / d, 1, 32);
  const auto signal = [&](int64_t i) {
    return reinterpret_cast<Stored*>(static_cast<char*>(run.data) + i * run.step);
  };
  T means[32];
  for (int64_t done = 0, n; done < run.count; done += n) {
    n = std::min(together, run.count - done);
    for (int64_t i = 0; i < n; ++i) {
      const Stored* const next = d <= kPrefetchedSamples ? signal(done + i + 1) : nullptr;
      means[i] = sum_row<T>(form, signal(done + i), plan.columns, plan.inner, next) / static_cast<T>(d);
    }
    for (int64_t i = 0; i < n; ++i) subtract(form, signal(done + i), d, means[i]);
  }
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
    } else if (layout.contiguous() && plan.columns * plan.inner == d) {
      subtract_rows<T>(form, plan, run);
      done = run.count;
    } else if (run.count > 1 && run.step == sizeof(Stored) && layout.dims == 1 &&
               plan.inner == 1 && plan.columns == d) {
      const int64_t stride = layout.strides[0];
      for (int64_t n; done < run.count; done += n) {
        n = std::min(kMostBeside<T>, run.count - done);
        T* const means = sum_beside(form, x + done, n, d, stride, scratch);
        for (int64_t i = 0; i < n; ++i) means[i] /= length;
        const int64_t ahead = columns_ahead<Stored>(n, stride);
        for (int64_t c = 0; c < d; ++c) subtract_each(form, x + done + c * stride, n, ahead, means);
      }
    }
  });
  if (done == run.count) return;
  const Layout in_memory = layout.in_memory_order();
  int64_t offsets[kMostSlots];
  for (int k = 0; k < plan.inner; ++k) offsets[k] = offset_of(layout, k);
  const bool by_columns = plan.inner > 1 && offset_of(layout, plan.inner) == 1;
  for (; done < run.count; ++done) {
    const Signal signal{&layout, static_cast<char*>(run.data) + done * run.step};
    const T mean = mean_of<T>(plan, signal, by_columns ? offsets : nullptr, scratch);
    subtract_from<T>({&in_memory, signal.data}, mean);
  }
}
