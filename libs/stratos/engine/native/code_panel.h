// One panel of codes times the rows of an item; include codes.h.
#pragma once

struct CodeStep {  // at most DEPTH units of one group
    const uint32_t *words;
    const ivec *zeros;
    int units;
    bool begins;
    GroupEnd end;
};

#define BY_ROWS(rows, call)          \
    switch (rows) {                  \
        case 1: { constexpr int R = 1; call; } break; \
        case 2: { constexpr int R = 2; call; } break; \
        case 3: { constexpr int R = 3; call; } break; \
        case 4: { constexpr int R = 4; call; } break; \
        case 5: { constexpr int R = 5; call; } break; \
        default: { constexpr int R = 6; call; }       \
    }

// Rows of one block; `wide` is null where the words are to be widened in registers.
template <class U, int64_t SCHEME> struct CodeBlock {
    static void multiply(ItemScope<U> &, const CodeStep &s, const float *wide, const float *x, int64_t stride, int rows,
                         float *raw, float *totals) {
        if (wide)
            BY_ROWS(rows, (unit_product<U, R>(wide, x, stride, s.units, s.begins, s.end, raw, totals)))
        else
            BY_ROWS(rows, (word_product<U, SCHEME, R>(s.words, s.zeros, x, stride, s.units, s.begins, s.end, raw, totals)))
    }
    static constexpr int64_t FEW_ROWS = MAX_ROWS;  // one block: what is widened is used once
    static constexpr int AHEAD = AHEAD_WORDS, LONE_DEPTH = DEPTH;
};

#if defined(STRATOS_TILE_ORDER)
#include "few_rows.h"

template <int64_t SCHEME> struct CodeBlock<TileUnits, SCHEME> {
    static void multiply(ItemScope<TileUnits> &scope, const CodeStep &s, const float *wide, const float *x, int64_t stride,
                         int rows, float *raw, float *totals) {
        const Rows all{x, stride, TileUnits::STEP, 16 * stride};
        accumulate(scope.tiles, Operands{wide, PANEL, all, s.units, raw, PANEL}, rows, PANEL, s.begins);
        if (!s.end.scales) return;
        for (int r = 0; r < rows; r++) {
            vec sums[1][STRIP];
            for (int v = 0; v < STRIP; v++) sums[0][v] = vload(raw + r * PANEL + v * LANES);
            end_group<1>(sums, s.end, raw + r * PANEL, totals + r * PANEL);
        }
    }
    static constexpr int64_t FEW_ROWS = 0;  // sum_few_rows() takes them
    static constexpr int AHEAD = AHEAD_WORDS;
    static constexpr int LONE_DEPTH = 2 * TileUnits::STEP;  // units of a lone block: tiles wait for what is widened
};
#endif

#if defined(__AMX_BF16__)
#include "code_tiles.h"
#endif

// Sums of a panel and a few rows, where a kernel of their own takes them.
template <int64_t SCHEME, class T> static inline bool sum_few_rows(const Linear *, int64_t, const T *, int64_t, float *) {
    return false;
}
#if defined(STRATOS_TILE_ORDER)
template <int64_t SCHEME>
static inline bool sum_few_rows(const Linear *l, int64_t panel, const bf16_t *x, int64_t rows, float *totals) {
    if (rows > few_rows_of(SCHEME)) return false;
    if (SCHEME == INT4_CODES && l->zeros)
        BY_FEW_ROWS(rows, (few_rows_panel<SCHEME, SCHEME == INT4_CODES, R>(l, panel, x, totals)))
    else
        BY_FEW_ROWS(rows, (few_rows_panel<SCHEME, false, R>(l, panel, x, totals)))
    return true;
}
#endif

#include "code_groups.h"

// The same of whole groups.
template <int64_t SCHEME, class T>
static inline bool sum_whole_groups(const Linear *l, int64_t panel, const T *x, int64_t rows, float *totals) {
    typedef typename UnitsOf<T>::type U;
    constexpr int64_t WITHOUT_ZEROS = SCHEME == INT4_CODES ? SYMMETRIC_INT4 : SCHEME;
    if constexpr (U::STEP > 1) return false;
    else if (!l->zeros) return sum_code_groups<WITHOUT_ZEROS>(l, panel, x, rows, totals);
    else return sum_code_groups<SCHEME>(l, panel, x, rows, totals);
}

template <class T, class O, int64_t SCHEME>
static void multiply_code_panel(const Linear *l, int64_t panel, const T *x, O *out, int64_t rows) {
    typedef typename UnitsOf<T>::type U;
    alignas(64) float raw[CHUNK * PANEL], totals[CHUNK * PANEL], wide[DEPTH * PANEL], copied[MAX_ROWS * DEPTH];
    ItemScope<U> scope;
    if (sum_few_rows<SCHEME>(l, panel, x, rows, totals) || sum_whole_groups<SCHEME>(l, panel, x, rows, totals))
        return store_sums<T>(l, panel, totals, rows, out);
    const int64_t k = l->k, groups = k / l->group, num_blocks = num_blocks_of<U>(rows);
    const bool is_direct = has_units<T>(k), widens_first = rows > CodeBlock<U, SCHEME>::FEW_ROWS;
    const int64_t depth = (num_blocks == 1 ? CodeBlock<U, SCHEME>::LONE_DEPTH : DEPTH) * U::PER_UNIT;
    const uint32_t *words = (const uint32_t *)l->weight + panel * (k / codes_of_word(SCHEME)) * PANEL;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t of_group = (panel * groups + g) * PANEL, begin = g * l->group, end = begin + l->group;
        ivec zeros[STRIP];
        for (int v = 0; v < STRIP; v++) zeros[v] = zeros_of(l, of_group + v * LANES, U::PER_UNIT);
        for (int64_t at = begin; at < end; at += depth) {
            const int64_t elements = end - at < depth ? end - at : depth;
            const bool is_last = at + elements == end;
            const CodeStep step{words + at / codes_of_word(SCHEME) * PANEL, zeros, (int)(elements / U::PER_UNIT),
                                at == begin, GroupEnd{is_last ? l->scales + of_group : nullptr, g == 0}};
            if (widens_first) widen<U::PER_UNIT, SCHEME, CodeBlock<U, SCHEME>::AHEAD>(step.words, zeros, step.units, wide);
            for (int64_t b = 0; b < num_blocks; b++) {
                const int64_t first = block_begin<U>(rows, b), last = block_begin<U>(rows, b + 1);
                const float *block = (const float *)(x + first * k + at);
                int64_t stride = k / U::PER_UNIT;
                if (!is_direct) {
                    for (int64_t r = first; r < last; r++) copy_units(x + r * k + at, elements, copied + (r - first) * DEPTH);
                    block = copied, stride = DEPTH;
                }
                CodeBlock<U, SCHEME>::multiply(scope, step, widens_first ? wide : nullptr, block, stride,
                                               (int)(last - first), raw + first * PANEL, totals + first * PANEL);
            }
        }
    }
    store_sums<T>(l, panel, totals, rows, out);
}

template <class T, class O, int64_t SCHEME> static void multiply_codes_by_blocks(const Linear *l, const T *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), chunks = row_chunks(rows, panels);
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t item = 0; item < panels * chunks; item++) {
        int64_t chunk = item / panels, first = rows * chunk / chunks, last = rows * (chunk + 1) / chunks;
        multiply_code_panel<T, O, SCHEME>(l, item % panels, x + first * l->k, out + first * l->stride, last - first);
    }
}

// The same of blocks whose sums and totals stay in registers, where a kernel of their own takes them.
template <int64_t SCHEME, class T, class O> static inline bool multiply_held_codes(const Linear *, const T *, O *, int64_t) {
    return false;
}
#if defined(__AVX512BF16__) && !defined(STRATOS_TILE_ORDER)
#include "held_codes.h"
#endif

// Called by every thread of a region; ends with a barrier.
template <class T, class O, int64_t SCHEME> static void multiply_code_rows(const Linear *l, const T *x, O *out, int64_t rows) {
#if defined(__AMX_BF16__)
    if constexpr (UnitsOf<T>::type::STEP > 1)
        if (rows > FEWER_ROWS) return multiply_codes_by_tiles<O, SCHEME>(l, x, out, rows);
#endif
    if (!multiply_held_codes<SCHEME>(l, x, out, rows)) multiply_codes_by_blocks<T, O, SCHEME>(l, x, out, rows);
}
