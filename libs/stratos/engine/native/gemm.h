// Matrix products with packed weights, out = x weight^T + bias, for any number of rows.
//
// A weight [n, k] lies as panels of PANEL columns of the result, [panel][unit of k][PANEL], the last one only as wide as
// its vectors, zeros after n; a unit is what tiles.h says, and the last pair of an odd k ends with a zero.  Every element
// of the result is one sum over the units of k in order, in float, for any number of rows, the place of a row among them, and the number of threads: sums that are
// put aside between two DEPTHs keep all their bits.  So a row's result depends on that row alone.
#pragma once

#include <omp.h>

#include "tiles.h"

constexpr int PANEL = STRIP * LANES;
constexpr int DEPTH = 64;  // units of k: this much of a panel stays in the first cache while the rows pass by
constexpr int CHUNK = 240;  // rows of one item

// What a weight holds.  FLOATS: elements of the compute type.  INT8_ROWS, LLM_INT8_ROWS: bytes, multiplied with rows that
// are cut to bytes as well (integers.h).  The others: codes that are widened inside the product (codes.h; k_quants.h from
// Q4_K on).
enum Scheme : int64_t {
    FLOATS = 0,
    INT8_ROWS = 1,
    LLM_INT8_ROWS = 2,
    INT8_CODES = 3,
    INT4_CODES = 4,
    FP8_CODES = 5,
    MXFP4_CODES = 6,
    NF4_CODES = 7,
    Q4_K_CODES = 8,
    Q5_K_CODES = 9,
    Q6_K_CODES = 10,
    NVFP4_CODES = 11
};

struct Linear {  // mirrored by native/structures.py
    const void *weight, *bias;  // packed; bias [n] of the compute type, or null
    const float *scales;        // [panel][groups of k][PANEL], zeros after n; null for FLOATS; K-quants: d and -dmin, or d;
                                // NVFP4_CODES: one of a column
    const uint8_t *zeros;       // the same: the code of INT4_CODES that is zero; null where it is 8
    const uint8_t *parts;       // from Q4_K on: scale and minimum, or two scales, of 32 inputs, [panel][k / 32][2][PANEL]
    const Linear *next;         // more columns of the same result, behind these; null is none
    int64_t n, k, scheme, group;
    int64_t stride;  // columns of the result, those of `next` included
    int64_t tile_rows;  // bytes: the least rows that are multiplied by tiles; 0 is the kernel's own choice, -1 none
    int64_t single_groups;  // codes: whether groups are multiplied one by one, never several at once (code_groups.h)
    int64_t single_panels;  // whether threads take panels one by one, in turn (share_panels)
};

template <class T> static inline int64_t units_of(int64_t k) {
    constexpr int per = UnitsOf<T>::type::PER_UNIT;
    return whole_steps<typename UnitsOf<T>::type>((k + per - 1) / per);
}

static inline int64_t panels_of(int64_t n) { return (n + PANEL - 1) / PANEL; }

// Columns that a panel has, in whole vectors.
static inline int64_t width_of(int64_t n, int64_t panel) {
    const int64_t left = n - panel * PANEL;
    return left < PANEL ? (left + LANES - 1) / LANES * LANES : PANEL;
}

// Columns that are computed of a panel of some width: those after it are of no use.
template <class U> static inline int computed_columns(int64_t width) { return (int)((width + U::SPAN - 1) / U::SPAN * U::SPAN); }

template <class T> static int64_t packed_bytes(int64_t n, int64_t k) {
    const int64_t last = width_of(n, panels_of(n) - 1), columns = (panels_of(n) - 1) * PANEL + last;
    const int64_t after = computed_columns<typename UnitsOf<T>::type>(last) - last;  // of the last unit
    return (columns * units_of<T>(k) + after) * (int64_t)sizeof(typename PackedOf<T>::type);
}

// -- packing, once ---------------------------------------------------------------------------------------------------------

// Rows can be read as units of 32 bits where they lie.
template <class T> static inline bool has_units(int64_t k) {
    return sizeof(T) == sizeof(float) || (UnitsOf<T>::type::PER_UNIT == 2 && k % 2 == 0);
}

template <class T> static void pack_units(const T *weight, float *out, int64_t columns, int64_t width, int64_t k) {
    const int64_t units = units_of<T>(k), given = k / UnitsOf<T>::type::PER_UNIT;
    for (int64_t c = 0; c < width; c += LANES)
        for (int64_t u = 0; u < units; u += LANES) {
            vec x[LANES];
            for (int i = 0; i < LANES; i++)
                x[i] = c + i < columns ? vload((const float *)(weight + (c + i) * k) + u, (int)(given - u)) : vset(0);
            transpose(x);
            for (int i = 0; i < LANES && u + i < units; i++) vstore(out + (u + i) * width + c, x[i]);
        }
}

template <class T> static void pack_panel(const T *weight, T *out, int64_t columns, int64_t k) {
    const int64_t width = width_of(columns, 0);
    constexpr int per = UnitsOf<T>::type::PER_UNIT;
    const int64_t units = units_of<T>(k);
    if (has_units<T>(k)) return pack_units(weight, (float *)out, columns, width, k);
    for (int64_t u = 0; u < units; u++)
        for (int64_t c = 0; c < width; c++)
            for (int i = 0; i < per; i++) {
                bool is_inside = c < columns && u * per + i < k;
                out[(u * width + c) * per + i] = is_inside ? weight[c * k + u * per + i] : T();
            }
}

template <class T> static void pack(const T *weight, T *out, int64_t n, int64_t k, int threads) {
    const int64_t elements = PANEL * units_of<T>(k) * (int64_t)(sizeof(typename PackedOf<T>::type) / sizeof(T));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t p = 0; p < panels_of(n); p++)
        pack_panel(weight + p * PANEL * k, out + p * elements, n - p * PANEL < PANEL ? n - p * PANEL : PANEL, k);
}

// -- products --------------------------------------------------------------------------------------------------------------

static inline void copy_units(const float *x, int64_t count, float *units) { memcpy(units, x, count * sizeof(float)); }

template <class T> static inline void copy_units(const T *x, int64_t count, float *units) {
    if (UnitsOf<T>::type::PER_UNIT == 2) {
        units[(count - 1) / 2] = 0;
        memcpy(units, x, count * sizeof(T));
    } else {
        for (int64_t i = 0; i < count; i += LANES) vstore(units + i, vload(x + i, (int)(count - i)), (int)(count - i));
    }
}

template <class T, class O>
static void store_panel(const float *sums, int64_t rows, const T *bias, O *out, int64_t stride, int64_t columns) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += LANES) {
            int count = (int)(columns - c);
            vec x = vload(sums + r * PANEL + c);
            vstore(out + r * stride + c, bias ? vadd(x, vload(bias + c, count)) : x, count);
        }
}

template <class T, class O> static void store_sums(const Linear *l, int64_t panel, const float *sums, int64_t rows, O *out) {
    const int64_t column = panel * PANEL, columns = l->n - column < PANEL ? l->n - column : PANEL;
    store_panel(sums, rows, l->bias ? (const T *)l->bias + column : nullptr, out + column, l->stride, columns);
}

// One panel times `rows` of at most CHUNK.
template <class T, class O>
static void multiply_panel(const Linear *l, int64_t panel, const T *x, O *out, int64_t rows) {
    typedef typename UnitsOf<T>::type U;
    typedef typename PackedOf<T>::type W;
    alignas(64) float sums[CHUNK * PANEL], copied[MAX_ROWS * DEPTH];
    ItemScope<U> scope;
    static const float ones[MAX_ROWS] = {1, 1, 1, 1, 1, 1};
    const int64_t k = l->k, units = units_of<T>(k), num_blocks = num_blocks_of<U>(rows);
    const bool is_direct = has_units<T>(k);
    const int64_t depth = is_direct && num_blocks == 1 ? units : DEPTH;
    const W *weight = (const W *)l->weight + panel * units * PANEL;
    const int64_t width = width_of(l->n, panel);
    const int columns = computed_columns<U>(width);
    constexpr int unit_lines = PANEL * sizeof(W) / 64;
    Fetch fetch;  // blocks share the fetching of the next DEPTH
    fetch.lines = num_blocks > 1 ? (int)((unit_lines + num_blocks - 1) / num_blocks) : 0;
    for (int64_t u = 0; u < units; u += depth) {
        int count = (int)(units - u < depth ? units - u : depth);
        for (int64_t b = 0; b < num_blocks; b++) {
            int64_t first = block_begin<U>(rows, b), last = block_begin<U>(rows, b + 1), at = u * U::PER_UNIT;
            const float *block = (const float *)(x + first * k + at);
            int64_t stride = k / U::PER_UNIT;
            if (!is_direct) {
                int64_t elements = k - at < count * U::PER_UNIT ? k - at : count * U::PER_UNIT;
                for (int64_t r = first; r < last; r++) copy_units(x + r * k + at, elements, copied + (r - first) * DEPTH);
                block = copied, stride = DEPTH;
            }
            if (u + depth >= units) fetch.lines = 0;
            fetch.next = (const float *)(weight + (u + depth) * width) + b * count * fetch.lines * LINE_FLOATS;
            multiply<U>(scope, (int)(last - first), weight + u * width, width, block, stride, count, sums + first * PANEL,
                        PANEL, u ? ones : nullptr, columns, fetch);
        }
    }
    store_sums<T>(l, panel, sums, rows, out);
}

// Into how many parts of at most CHUNK rows are cut, so that every thread has some.
static inline int64_t row_chunks(int64_t rows, int64_t panels) {
    const int64_t wanted = (4 * omp_get_num_threads() + panels - 1) / panels, least = (rows + CHUNK - 1) / CHUNK;
    int64_t chunks = least;
    if (chunks < wanted && rows > 16 * MAX_ROWS) chunks = wanted < rows / (8 * MAX_ROWS) ? wanted : rows / (8 * MAX_ROWS);
    return chunks < least ? least : chunks;
}

// Called by every thread of a region, before a loop over panels that is scheduled at runtime.  A thread that computes codes
// fetches what lies behind its panel, too.  In runs, long ones first, that is its own next panel; in turn it would be
// another thread's, and come from memory twice.
static inline void share_panels(const Linear *l) {
    omp_set_schedule(l->single_panels ? omp_sched_dynamic : omp_sched_guided, 1);
}

// Called by every thread of a region; ends with a barrier.  out [rows, n] is of T or of float.
template <class T, class O> static void multiply_rows(const Linear *l, const T *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), chunks = row_chunks(rows, panels);
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t item = 0; item < panels * chunks; item++) {
        int64_t chunk = item / panels, first = rows * chunk / chunks, last = rows * (chunk + 1) / chunks;
        multiply_panel(l, item % panels, x + first * l->k, out + first * l->stride, last - first);
    }
}

#if defined(STRATOS_TILE_ORDER)
#include "tile_panel.h"
#endif
