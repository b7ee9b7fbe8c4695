// Products of bytes: weights with one scale per column, rows with one scale each, sums of 32 bits.
//
// A row x becomes round(x * 127 / m), m the largest of |x|; the result is sum * (m / 127) * scale.  Codes of a row lie in
// [-127, 127] and those of a weight, stored with 128 added, in [0, 255]: a sum of k products stays below 2^31 up to
// MAX_BYTES of k, is exact in any order, and 128 times the sum of the row is taken off.  So every instruction set gives
// the same bits, and so do tiles (byte_tiles.h), which many rows are given to.  Without VNNI two products of 16 bits are
// added to 32: `maddubs`, which adds them to 16, would saturate.
//
// With LLM_INT8_ROWS elements of a row whose size is OUTLIER or more are left out of that: each is multiplied as it is, and
// their sum, by fma in the order of k, is added before the scale of the weight.
#pragma once

#include "gemm.h"
#include "integer_simd.h"
#include "row_buffer.h"

constexpr int64_t MAX_BYTES = 65536;  // 255 * 127 * 65536 < 2^31; longer rows are refused when a model is loaded
constexpr int BYTES_PER_UNIT = 4;
constexpr float OUTLIER = 6.0f, BELOW_OUTLIER = 5.9999995f;  // the float before it

static inline bool has_byte_rows(int64_t scheme) { return scheme == INT8_ROWS || scheme == LLM_INT8_ROWS; }

#if defined(__AVX512VNNI__)
struct RowUnit {
    int8_t codes[BYTES_PER_UNIT];
};
struct ByteColumn {  // four products are added to 32 bits at once
    ivec codes;
    explicit ByteColumn(ivec w) : codes(w) {}
    ivec madd(const RowUnit *x, ivec sum) const {
        int32_t unit;
        memcpy(&unit, x, 4);
        return _mm512_dpbusd_epi32(sum, codes, iset(unit));
    }
};
static inline void store_units(RowUnit *to, ivec x, int count) {
    _mm512_mask_cvtepi32_storeu_epi8(to, first_lanes(count * BYTES_PER_UNIT), x);
}
#else
struct RowUnit {
    int16_t even[2], odd[2];
};
struct ByteColumn {
    ivec even, odd;
    explicit ByteColumn(ivec w) : even(iand(w, iset(0x00ff00ff))), odd(ishr16<8>(w)) {}
    ivec madd(const RowUnit *x, ivec sum) const {
        int32_t of_even, of_odd;
        memcpy(&of_even, x->even, 4);
        memcpy(&of_odd, x->odd, 4);
        return iadd(iadd(sum, imadd16(even, iset(of_even))), imadd16(odd, iset(of_odd)));
    }
};
static inline void store_units(RowUnit *to, ivec codes, int count) {
    alignas(64) int32_t x[LANES];
    istore(x, codes);
    for (int u = 0; u < count && u < LANES / BYTES_PER_UNIT; u++) {
        const int32_t *of = x + u * BYTES_PER_UNIT;
        to[u] = RowUnit{{(int16_t)of[0], (int16_t)of[2]}, {(int16_t)of[1], (int16_t)of[3]}};
    }
}
#endif

// With tiles, whole steps of them.
static inline int64_t byte_units_of(int64_t k) {
    const int64_t units = (k + BYTES_PER_UNIT - 1) / BYTES_PER_UNIT;
#if defined(__AMX_INT8__)
    return whole_steps<TileUnits>(units);
#else
    return units;
#endif
}

static inline const uint8_t *byte_panel(const Linear *l, int64_t panel) {
    return (const uint8_t *)l->weight + panel * byte_units_of(l->k) * PANEL * BYTES_PER_UNIT;
}

static inline void pack_bytes(const uint8_t *codes, uint8_t *out, int64_t n, int64_t k, int threads) {
    const int64_t units = byte_units_of(k);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t p = 0; p < panels_of(n); p++)
        for (int64_t u = 0; u < units; u++)
            for (int64_t c = 0; c < PANEL; c++)
                for (int64_t i = 0; i < BYTES_PER_UNIT; i++) {
                    const int64_t column = p * PANEL + c, at = u * BYTES_PER_UNIT + i;
                    const bool is_inside = column < n && at < k;
                    out[((p * units + u) * PANEL + c) * BYTES_PER_UNIT + i] = is_inside ? codes[column * k + at] ^ 0x80 : 0x80;
                }
}

// -- rows ------------------------------------------------------------------------------------------------------------------

constexpr int64_t ROWS_OF_TILE = 16, UNITS_OF_STEP = 16;

struct ByteRows {
    RowUnit *units;    // see at()
    float *scales;    // [rows]; NaN for a row that is not finite, so that all of its results are
    int32_t *offsets;  // [rows]: 128 times the sum of the codes
    uint32_t *marks;   // [rows][num_marks]: of LLM_INT8_ROWS, a bit for each element that is an outlier
    int64_t num_marks;
    int64_t stride, step_stride, tile_stride;  // of a row, of UNITS_OF_STEP units and of ROWS_OF_TILE rows

    RowUnit *at(int64_t row, int64_t unit) const {
        return units + row / ROWS_OF_TILE * tile_stride + row % ROWS_OF_TILE * stride +
               unit / UNITS_OF_STEP * step_stride + unit % UNITS_OF_STEP;
    }
    ByteRows from(int64_t row) const {
        return ByteRows{at(row, 0),  scales + row, offsets + row, marks + row * num_marks, num_marks,
                        stride,      step_stride,  tile_stride};
    }
};

static inline int64_t marks_of(int64_t k) { return (k + 31) / 32; }

template <class T> static void mark_outliers(const T *x, int64_t k, uint32_t *marks) {
    memset(marks, 0, marks_of(k) * sizeof(uint32_t));
    for (int64_t i = 0; i < k; i++) marks[i / 32] |= (uint32_t)(__builtin_fabsf(to_float(x[i])) >= OUTLIER) << (i % 32);
}

constexpr float LEAST_ROW = 1e-30f;  // a row that is smaller is zero: 127 / m stays finite

template <class T, int64_t SCHEME> static void quantise_row(const T *x, int64_t k, const ByteRows &to) {
    const int64_t units = byte_units_of(k);
    vec most = vset(0), zeros = vset(0);  // x * 0 is 0 where x is finite, else NaN
    for (int64_t i = 0; i < k; i += LANES) {
        vec v = vload(x + i, (int)(k - i));
        zeros = vfma(v, vset(0), zeros);
        if (SCHEME == LLM_INT8_ROWS) v = vfinite(v, BELOW_OUTLIER);
        most = vmax(most, vmax(v, vsub(vset(0), v)));
    }
    const bool is_finite = vsum(zeros) == 0.0f;
    const float m = is_finite ? vmaximum(most) : 0, factor = m > LEAST_ROW ? 127 / m : 0;
    ivec sum = iset(0);
    for (int64_t i = 0; i < units * BYTES_PER_UNIT; i += LANES) {
        vec v = i < k ? vload(x + i, (int)(k - i)) : vset(0);
        if (SCHEME == LLM_INT8_ROWS) v = vfinite(v, BELOW_OUTLIER);
        const ivec q = is_finite ? to_integers(vmul(v, vset(factor))) : iset(0);
        sum = iadd(sum, q);
        store_units(to.at(0, i / BYTES_PER_UNIT), q, (int)(units - i / BYTES_PER_UNIT));
    }
    alignas(64) int32_t codes[LANES];
    istore(codes, sum);
    *to.offsets = 0;
    for (int i = 0; i < LANES; i++) *to.offsets += 128 * codes[i];
    *to.scales = is_finite ? m > LEAST_ROW ? m / 127 : 0 : __builtin_nanf("");
    if (SCHEME == LLM_INT8_ROWS) mark_outliers(x, k, to.marks);
}

// -- products --------------------------------------------------------------------------------------------------------------

template <int ROWS>
static inline void byte_product(const uint8_t *weight, const ByteRows &x, int64_t unit, int count, int32_t *sums,
                                bool begins) {
    ivec acc[ROWS][STRIP];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++)
            acc[r][v] = begins ? iset(0) : iload(sums + r * PANEL + v * LANES);
    for (int u = 0; u < count; u++, weight += PANEL * BYTES_PER_UNIT) {
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) {
            const ByteColumn column(iload(weight + v * LANES * BYTES_PER_UNIT));
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) acc[r][v] = column.madd(x.units + r * x.stride + unit + u, acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) istore(sums + r * PANEL + v * LANES, acc[r][v]);
}

static void byte_block(int rows, const uint8_t *weight, const ByteRows &x, int64_t unit, int count, int32_t *sums,
                       bool begins) {
    switch (rows) {
        case 1: return byte_product<1>(weight, x, unit, count, sums, begins);
        case 2: return byte_product<2>(weight, x, unit, count, sums, begins);
        case 3: return byte_product<3>(weight, x, unit, count, sums, begins);
        case 4: return byte_product<4>(weight, x, unit, count, sums, begins);
        case 5: return byte_product<5>(weight, x, unit, count, sums, begins);
        default: return byte_product<6>(weight, x, unit, count, sums, begins);
    }
}

// Sums of a row's outliers times the codes of PANEL columns; false where it has none.
template <class T> static bool sum_outliers(const uint8_t *weight, const uint32_t *marks, const T *x, int64_t k, vec *sums) {
    bool has_any = false;
    for (int v = 0; v < STRIP; v++) sums[v] = vset(0);
    for (int64_t m = 0; m < marks_of(k); m++)
        for (uint32_t left = marks[m]; left; left &= left - 1) {
            const int64_t i = m * 32 + __builtin_ctz(left);
            const uint8_t *unit = weight + i / BYTES_PER_UNIT * PANEL * BYTES_PER_UNIT;
            const vec element = vset(to_float(x[i]));
            has_any = true;
            for (int v = 0; v < STRIP; v++) {
                const ivec word = iload(unit + v * LANES * BYTES_PER_UNIT);
                const ivec byte = iand(ishr_by(word, (int)(i % BYTES_PER_UNIT) * 8), iset(255));
                sums[v] = vfma(element, to_floats(isub(byte, iset(128))), sums[v]);
            }
        }
    return has_any;
}

// Results of one panel from the sums [rows][PANEL] of its codes with 128 added.
template <class T, class O, int64_t SCHEME>
static void store_byte_sums(const Linear *l, int64_t panel, const ByteRows &x, const T *given, const int32_t *sums, O *out,
                            int64_t rows) {
    const uint8_t *weight = byte_panel(l, panel);
    const float *scales = l->scales + panel * PANEL;
    const int64_t column = panel * PANEL, columns = l->n - column < PANEL ? l->n - column : PANEL;
    const T *bias = l->bias ? (const T *)l->bias + column : nullptr;
    for (int64_t r = 0; r < rows; r++) {
        vec outliers[STRIP];
        const bool has_outliers =
            SCHEME == LLM_INT8_ROWS && sum_outliers(weight, x.marks + r * x.num_marks, given + r * l->k, l->k, outliers);
        for (int c = 0; c < columns; c += LANES) {
            const int count = (int)(columns - c);
            const ivec sum = isub(iload(sums + r * PANEL + c), iset(x.offsets[r]));
            vec scaled = vmul(to_floats(sum), vset(x.scales[r]));
            if (has_outliers) scaled = vadd(scaled, outliers[c / LANES]);
            scaled = vmul(scaled, vload(scales + c));
            vstore(out + r * l->stride + column + c, bias ? vadd(scaled, vload(bias + c, count)) : scaled, count);
        }
    }
}

template <class T, class O, int64_t SCHEME>
static void multiply_byte_panel(const Linear *l, int64_t panel, const ByteRows &x, const T *given, O *out, int64_t rows) {
    alignas(64) int32_t sums[CHUNK * PANEL];
    const int64_t units = byte_units_of(l->k), blocks = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t depth = blocks == 1 ? units : DEPTH;
    const uint8_t *weight = byte_panel(l, panel);
    for (int64_t u = 0; u < units; u += depth) {
        const int count = (int)(units - u < depth ? units - u : depth);
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t first = rows * b / blocks, last = rows * (b + 1) / blocks;
            byte_block((int)(last - first), weight + u * PANEL * BYTES_PER_UNIT, x.from(first), u, count,
                       sums + first * PANEL, u == 0);
        }
    }
    store_byte_sums<T, O, SCHEME>(l, panel, x, given, sums, out, rows);
}

#if defined(__AMX_INT8__)
#include "byte_tiles.h"
#else
static inline bool takes_byte_tiles(const Linear *, int64_t) { return false; }
#endif

// Called by every thread of a region; ends with a barrier.
template <class T, class O, int64_t SCHEME> static void multiply_byte_rows(const Linear *l, const T *x, O *out, int64_t rows) {
    const bool has_tiles = takes_byte_tiles(l, rows);
    const int64_t units = byte_units_of(l->k), marks = SCHEME == LLM_INT8_ROWS ? marks_of(l->k) : 0;
    const int64_t held = has_tiles ? (rows + ROWS_OF_TILE - 1) / ROWS_OF_TILE * ROWS_OF_TILE : rows;
    const int64_t row_floats = units * (int64_t)sizeof(RowUnit) / 4;
    float *buffer;
#pragma omp single copyprivate(buffer)
    buffer = row_buffer.reserve(held * row_floats + rows * (2 + marks));
    float *behind = buffer + held * row_floats;  // units come first: they are the widest
    ByteRows all{(RowUnit *)buffer, behind, (int32_t *)(behind + rows), (uint32_t *)(behind + 2 * rows), marks,
                 units, UNITS_OF_STEP, ROWS_OF_TILE * units};
    if (has_tiles) all.stride = UNITS_OF_STEP, all.step_stride = ROWS_OF_TILE * UNITS_OF_STEP;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) quantise_row<T, SCHEME>(x + r * l->k, l->k, all.from(r));
#if defined(__AMX_INT8__)
    if (has_tiles) return multiply_byte_tiles<T, O, SCHEME>(l, all, x, out, rows);
#endif
    const int64_t panels = panels_of(l->n), chunks = row_chunks(rows, panels);
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t item = 0; item < panels * chunks; item++) {
        int64_t chunk = item / panels, first = rows * chunk / chunks, last = rows * (chunk + 1) / chunks;
        multiply_byte_panel<T, O, SCHEME>(l, item % panels, all.from(first), x + first * l->k, out + first * l->stride,
                                          last - first);
    }
}
