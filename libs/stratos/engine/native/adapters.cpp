#include "adapters.h"

#include "region.h"

#if defined(STRATOS_TILE_ORDER)
// What a thread sets up for all products of a loop.  Denormals are zeros in products alone: sums of results keep theirs.
template <class U> struct LoopScope {};
template <> struct LoopScope<TileUnits> {
    TileScope tiles;
};

// sums = rows weight where a row has fewer units than a step, which are all that is read of the weight.  The zeros behind
// them decide nothing: the sum of this one step is added to +0, and so is +0 itself where it is a zero of any sign.
template <int ROWS>
static inline void short_step(const float *weight, int64_t width, const float *x, int64_t x_stride, int units, float *sums) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    alignas(64) float even_x[ROWS][LANES], odd_x[ROWS][LANES];
    for (int r = 0; r < ROWS; r++) {
        const __m512i pairs = _mm512_maskz_loadu_epi32(first_lanes(units), x + r * x_stride);
        vstore(even_x[r], _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
        vstore(odd_x[r], _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
    }
    for (int64_t c = 0; c < width; c += 2 * LANES) {
        vec even[ROWS][2], odd[ROWS][2];
        const int vectors = width - c > LANES ? 2 : 1;
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < 2; v++) even[r][v] = odd[r][v] = vset(0);
        for (int u = 0; u < units; u++)
            for (int v = 0; v < vectors; v++) {
                const __m512i pair = _mm512_loadu_si512(weight + u * width + c + v * LANES);
                const vec even_w = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
                const vec odd_w = _mm512_castsi512_ps(_mm512_and_si512(pair, upper));
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    even[r][v] = vfma(vset(even_x[r][u]), even_w, even[r][v]);
                    odd[r][v] = vfma(vset(odd_x[r][u]), odd_w, odd[r][v]);
                }
            }
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                vstore(sums + r * PANEL + c + v * LANES, vadd(vset(0), vadd(even[r][v], odd[r][v])));
    }
}

// At most four rows: more are multiplied by tiles faster.
static inline void short_rows(int rows, const float *weight, int64_t width, const float *x, int64_t x_stride, int units, float *sums) {
    DenormalsAreZero denormals;
    switch (rows) {
        case 1: return short_step<1>(weight, width, x, x_stride, units, sums);
        case 2: return short_step<2>(weight, width, x, x_stride, units, sums);
        case 3: return short_step<3>(weight, width, x, x_stride, units, sums);
        default: return short_step<4>(weight, width, x, x_stride, units, sums);
    }
}

static inline void multiply_block(LoopScope<TileUnits> &scope, int rows, const float *weight, int64_t width, const float *x,
                                  int64_t x_stride, int units, int given, float *sums, bool is_first) {
    if (given < TileUnits::STEP && units == TileUnits::STEP && is_first && rows <= 4)
        return short_rows(rows, weight, width, x, x_stride, given, sums);
#if !defined(__AMX_BF16__)
    DenormalsAreZero denormals;
#endif
    const Rows all{x, x_stride, TileUnits::STEP, 16 * x_stride};
    Fetch fetch;
    fetch.is_stream = true;
    accumulate(scope.tiles, Operands{weight, width, all, units, sums, PANEL}, rows, computed_columns<TileUnits>(width), is_first, fetch);
}
#else
template <class U> struct LoopScope {};
#endif

// sums (+)= rows weight; of `units` those after `given` are zeros.
template <class U, class W>
static inline void multiply_block(LoopScope<U> &, int rows, const W *weight, int64_t width, const float *x, int64_t x_stride,
                                  int units, int, float *sums, bool is_first) {
    static const float ones[MAX_ROWS] = {1, 1, 1, 1, 1, 1};
    ItemScope<U> scope;
    multiply<U>(scope, rows, weight, width, x, x_stride, units, sums, PANEL, is_first ? nullptr : ones, (int)width, Fetch());
}

static inline int64_t columns_of(const Linear *l, int64_t panel) {
    const int64_t left = l->n - panel * PANEL;
    return left < PANEL ? left : PANEL;
}

// sums [rows][PANEL] of one panel: at most SEGMENT_ROWS rows of `stride` elements.
template <class T>
static void sum_rows(LoopScope<typename UnitsOf<T>::type> &scope, const Linear *l, int64_t panel, const T *x, int64_t stride,
                     int64_t rows, float *sums) {
    typedef typename UnitsOf<T>::type U;
    typedef typename PackedOf<T>::type W;
    alignas(64) float copied[U::ROWS * DEPTH];
    const int64_t k = l->k, units = units_of<T>(k), num_blocks = num_blocks_of<U>(rows);
    const bool is_direct = has_units<T>(k) && k == units * U::PER_UNIT && stride % U::PER_UNIT == 0;
    const int64_t depth = is_direct && num_blocks == 1 ? units : DEPTH;
    const int64_t width = width_of(l->n, panel);
    const W *weight = (const W *)l->weight + panel * units * PANEL;
    for (int64_t u = 0; u < units; u += depth) {
        const int64_t count = units - u < depth ? units - u : depth, at = u * U::PER_UNIT;
        const int64_t elements = k - at < count * U::PER_UNIT ? k - at : count * U::PER_UNIT;
        for (int64_t b = 0; b < num_blocks; b++) {
            const int64_t first = block_begin<U>(rows, b), last = block_begin<U>(rows, b + 1);
            const float *block = (const float *)(x + first * stride + at);
            int64_t block_stride = stride / U::PER_UNIT;
            if (!is_direct) {
                if (elements < count * U::PER_UNIT) memset(copied, 0, sizeof copied);
                for (int64_t r = first; r < last; r++) copy_units(x + r * stride + at, elements, copied + (r - first) * DEPTH);
                block = copied, block_stride = DEPTH;
            }
            multiply_block(scope, (int)(last - first), weight + u * width, width, block, block_stride, (int)count,
                           (int)((elements + U::PER_UNIT - 1) / U::PER_UNIT), sums + first * PANEL, u == 0);
        }
    }
}

// out [rows][stride] += sums, which are rounded first.
template <class T> static void add_sums(const float *sums, int64_t rows, int64_t columns, T *out, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += LANES) {
            const int count = (int)(columns - c);
            T rounded[LANES], *to = out + r * stride + c;
            vstore(rounded, vload(sums + r * PANEL + c));
            store_sum(to, vadd(vload(to, count), vload(rounded, count)), count);
        }
}

template <class T> static void shrink(const StepAdapters *a, int64_t place, const T *x) {
    alignas(64) float sums[SEGMENT_ROWS * PANEL];
    LoopScope<typename UnitsOf<T>::type> scope;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < a->num_segments; i++) {
        const AdapterRows &s = a->segments[i];
        const Linear *l = s.parts[place].shrink;
        if (!l) continue;
        for (int64_t panel = 0; panel < panels_of(l->n); panel++) {
            T *out = (T *)a->shrunk + s.first * a->stride + panel * PANEL;
            sum_rows(scope, l, panel, x + s.first * l->k, l->k, s.rows, sums);
            store_panel<T>(sums, s.rows, nullptr, out, a->stride, columns_of(l, panel));
        }
    }
}

template <class T> static void add_biases(const StepAdapters *a, int64_t place, T *out, int64_t columns) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < a->num_segments; i++) {
        const AdapterRows &s = a->segments[i];
        const T *bias = (const T *)s.parts[place].bias;
        for (int64_t r = s.first; bias && r < s.first + s.rows; r++)
            for (int64_t c = 0; c < columns; c += LANES) {
                const int count = (int)(columns - c);
                store_sum(out + r * columns + c, vadd(vload(out + r * columns + c, count), vload(bias + c, count)), count);
            }
    }
}

template <class T> static void expand(const StepAdapters *a, int64_t place, T *out, int64_t columns) {
    alignas(64) float sums[SEGMENT_ROWS * PANEL];
    LoopScope<typename UnitsOf<T>::type> scope;
    // few segments are cut into slices of their panels, so that every thread has some
    const int64_t slices = (4 * omp_get_num_threads() + a->num_segments - 1) / a->num_segments;
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < a->num_segments * slices; item++) {
        const AdapterRows &s = a->segments[item / slices];
        const AdapterPart &part = s.parts[place];
        for (int64_t t = 0; t < part.num_targets; t++) {
            const AdapterTarget &target = part.targets[t];
            const int64_t panels = panels_of(target.expand->n), slice = item % slices;
            const T *x = (const T *)a->shrunk + s.first * a->stride + target.rank;
            for (int64_t panel = panels * slice / slices; panel < panels * (slice + 1) / slices; panel++) {
                sum_rows(scope, target.expand, panel, x, a->stride, s.rows, sums);
                add_sums(sums, s.rows, columns_of(target.expand, panel), out + s.first * columns + target.column + panel * PANEL,
                         columns);
            }
        }
    }
    if (a->has_bias) add_biases(a, place, out, columns);
}

void region_shrink(int dtype, const StepAdapters *a, int64_t place, const void *x) {
    DISPATCH(dtype, shrink(a, place, (const T *)x));
}

void region_expand(int dtype, const StepAdapters *a, int64_t place, void *out, int64_t columns) {
    DISPATCH(dtype, expand(a, place, (T *)out, columns));
}
