// Blocks of rows times codes by held_sums.h; code_panel.h includes this.  Codes of 4 bits are looked up in registers, where
// shifts and look-ups have units of their own; others are widened once in a pass.
#pragma once

#include "held_sums.h"

constexpr int HELD_LEAST_WIDE = 24;  // rows of a product with codes that are widened first

template <int64_t SCHEME> struct HeldWords {
    static constexpr int PER_WORD = codes_of_word(SCHEME) / 2;
    const uint32_t *words;  // of the pass
    const uint8_t *zeros;   // [groups][PANEL] of INT4_CODES
    int64_t units;          // of a group
    int64_t count;          // groups of the pass
    bool fetches;           // as many lines as are read, which lie GROUPS_AHEAD behind the pass

    template <int ROWS, int AT_ONCE>
    __attribute__((always_inline)) void add(int64_t g, int column, const float *x,
                                            vec (&sums)[AT_ONCE][ROWS][HELD_VECS]) const {
        const int64_t size = units / PER_WORD * PANEL;  // of a group, as words
        const uint32_t *at = words + g * size + column;
        const float *ahead = (const float *)words + GROUPS_AHEAD + (column * count + g * HELD_COLUMNS) * (units / PER_WORD);
        ivec zero[AT_ONCE][HELD_VECS];
#pragma GCC unroll 2
        for (int t = 0; t < AT_ONCE; t++)
#pragma GCC unroll 2
            for (int v = 0; v < HELD_VECS; v++)
                zero[t][v] = SCHEME == INT4_CODES ? zeros_at(zeros + (g + t) * PANEL + column + v * LANES, 2) : iset(0);
        x += g * units * ROWS;
        for (int64_t u = 0; u < units; u += PER_WORD, at += PANEL, x += PER_WORD * ROWS) {
            if (fetches) fetch_lines<AT_ONCE * HELD_VECS>(ahead), ahead += AT_ONCE * HELD_COLUMNS;
#pragma GCC unroll 2
            for (int t = 0; t < AT_ONCE; t++) {
                CodeWords<SCHEME> loaded[HELD_VECS];
#pragma GCC unroll 2
                for (int v = 0; v < HELD_VECS; v++) loaded[v].read(at + t * size + v * LANES);
                add_word<ROWS>(loaded, zero[t], x + t * units * ROWS, sums[t]);
            }
        }
    }

    template <int ROWS, int J = 0>
    __attribute__((always_inline)) static void add_word(const CodeWords<SCHEME> *loaded, const ivec *zero, const float *x,
                                                        vec (&sums)[ROWS][HELD_VECS]) {
        vec column[HELD_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < HELD_VECS; v++) column[v] = Widened<2, SCHEME, J>::of(loaded[v], zero[v]);
        add_column<ROWS>(column, x + J * ROWS, sums);
        if constexpr (J + 1 < PER_WORD) add_word<ROWS, J + 1>(loaded, zero, x, sums);
    }
};

struct HeldEnds {
    const float *scales;  // [groups][PANEL] of the pass
    bool is_first;        // of the row's passes

    template <int ROWS>
    __attribute__((always_inline)) void hold(int64_t g, int column, const vec (&sums)[ROWS][HELD_VECS],
                                             vec (&held)[ROWS][HELD_VECS]) const {
#pragma GCC unroll 2
        for (int v = 0; v < HELD_VECS; v++) {
            const vec scale = vload(scales + g * PANEL + column + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) held[r][v] = vfma(sums[r][v], scale, held[r][v]);
        }
    }
};

struct HeldWide {  // groups of codes that were widened
    const float *wide;
    int64_t units;  // of a group
    bool fetches;   // widen() has done it

    template <int ROWS, int AT_ONCE>
    __attribute__((always_inline)) void add(int64_t g, int column, const float *x,
                                            vec (&sums)[AT_ONCE][ROWS][HELD_VECS]) const {
        const float *at = wide + g * units * PANEL + column;
        x += g * units * ROWS;
        for (int64_t u = 0; u < units; u++, at += PANEL, x += ROWS) {
#pragma GCC unroll 2
            for (int t = 0; t < AT_ONCE; t++) {
                const float *own = at + t * units * PANEL;
                const vec of_unit[HELD_VECS] = {vload(own), vload(own + LANES)};
                add_column<ROWS>(of_unit, x + t * units * ROWS, sums[t]);
            }
        }
    }
};

template <int64_t SCHEME>
static void hold_code_panel(const Linear *l, int64_t panel, const HeldRows &x, int64_t first, int64_t last, float *totals) {
    constexpr int64_t depth = codes_of_word(SCHEME) == 8 ? HELD_UNITS : DEPTH;
    alignas(64) float wide[codes_of_word(SCHEME) == 8 ? 1 : DEPTH * PANEL];
    const int64_t groups = l->k / l->group, units = l->group / 2, most = units < depth ? depth / units : 1;
    for (int64_t g = 0, count; g < groups; g += count) {
        count = groups - g < most ? groups - g : most;
        const int64_t at = panel * groups + g;
        const HeldWords<SCHEME> words{(const uint32_t *)l->weight + at * l->group / codes_of_word(SCHEME) * PANEL,
                                      l->zeros + at * PANEL, units, count, false};
        const HeldEnds ends{l->scales + at * PANEL, g == 0};
        const auto ends_of = [&](int64_t) { return ends; };
        if constexpr (codes_of_word(SCHEME) == 8) {
            hold_pass(words, ends_of, count, x, g * units, first, last, totals);
        } else {
            const ivec zero[STRIP] = {iset(0), iset(0), iset(0), iset(0)};
            widen<2, SCHEME, AHEAD_WORDS>(words.words, zero, (int)(count * units), wide);
            hold_pass(HeldWide{wide, units, false}, ends_of, count, x, g * units, first, last, totals);
        }
    }
}

// Does nothing and returns false where other kernels take the weight, or so many rows.
template <int64_t SCHEME, class O> static bool multiply_held_codes(const Linear *l, const bf16_t *x, O *out, int64_t rows) {
    const bool widens_first = codes_of_word(SCHEME) != 8;
    if (l->single_groups || rows < (widens_first ? HELD_LEAST_WIDE : HELD_LEAST) || (widens_first && l->group / 2 > DEPTH))
        return false;
    float *buffer;
#pragma omp single copyprivate(buffer)
    buffer = row_buffer.reserve(rows * (l->k / 2));
    const HeldRows held = held_rows(x, rows, l->k, buffer);
    constexpr int64_t WITHOUT_ZEROS = SCHEME == INT4_CODES ? SYMMETRIC_INT4 : SCHEME;
    multiply_held_rows(l, held, out, [&](int64_t panel, int64_t first, int64_t last, float *totals) {
        if (l->zeros) hold_code_panel<SCHEME>(l, panel, held, first, last, totals);
        else hold_code_panel<WITHOUT_ZEROS>(l, panel, held, first, last, totals);
    });
    return true;
}
