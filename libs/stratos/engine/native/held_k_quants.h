// Blocks of rows times K-quants and NVFP4 by held_sums.h; k_quants.h includes this.
#pragma once

#include "held_sums.h"

constexpr int HELD_STEPS = HELD_UNITS * 2 / GROUP_STEP;  // of a pass

template <int64_t SCHEME> struct HeldKWords {
    static constexpr int GROUPS = KQuant<SCHEME>::GROUPS, WORDS = STEP_WORDS / GROUPS, PER_WORD = 4;
    static constexpr int STEP = KQuant<SCHEME>::WORDS * PANEL, LINES = KQuant<SCHEME>::WORDS * HELD_VECS / GROUPS;
    const uint32_t *words;  // of the pass
    int64_t count;          // groups of the pass
    bool fetches;           // as many lines as are read, which lie GROUPS_AHEAD behind the pass

    template <int ROWS, int AT_ONCE>
    __attribute__((always_inline)) void add(int64_t g, int column, const float *x,
                                            vec (&sums)[AT_ONCE][ROWS][HELD_VECS]) const {
        const float *ahead = (const float *)words + GROUPS_AHEAD + (column / HELD_COLUMNS * count + g) * LINES * LINE_FLOATS;
        if (fetches) fetch_lines<LINES * AT_ONCE>(ahead);
        x += g * WORDS * PER_WORD * ROWS;
#pragma GCC unroll 1
        for (int w = 0; w < WORDS; w++, x += PER_WORD * ROWS) {
#pragma GCC unroll 2
            for (int t = 0; t < AT_ONCE; t++) {
                const uint32_t *step = words + (g + t) / GROUPS * STEP + column;
                const int at = (int)(g + t) % GROUPS * WORDS + w;
                const KWord<SCHEME> loaded[HELD_VECS] = {KWord<SCHEME>(step, at), KWord<SCHEME>(step + LANES, at)};
                add_word<ROWS>(loaded, x + t * WORDS * PER_WORD * ROWS, sums[t]);
            }
        }
    }

    template <int ROWS, int J = 0>
    __attribute__((always_inline)) static void add_word(const KWord<SCHEME> *loaded, const float *x,
                                                        vec (&sums)[ROWS][HELD_VECS]) {
        vec column[HELD_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < HELD_VECS; v++) column[v] = KWidened<2, SCHEME, J>::of(loaded[v].low, loaded[v].high);
        add_column<ROWS>(column, x + J * ROWS, sums);
        if constexpr (J + 1 < PER_WORD) add_word<ROWS, J + 1>(loaded, x, sums);
    }
};

template <int64_t SCHEME> struct HeldKEnds {
    static constexpr int GROUPS = KQuant<SCHEME>::GROUPS;
    const float *scales;    // [steps][2][PANEL] of the pass, as k_scales gives them
    const float *row_sums;  // of the block's first row and the pass's first step
    int64_t row_stride;
    bool is_first;  // of the row's passes

    template <int ROWS>
    __attribute__((always_inline)) void hold(int64_t g, int column, const vec (&sums)[ROWS][HELD_VECS],
                                             vec (&held)[ROWS][HELD_VECS]) const {
        const float *own = scales + g * (2 / GROUPS) * PANEL + column;
#pragma GCC unroll 2
        for (int v = 0; v < HELD_VECS; v++) {
            const vec scale = vload(own + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) held[r][v] = vfma(sums[r][v], scale, held[r][v]);
            if (!KQuant<SCHEME>::HAS_MINIMA) continue;
            const vec minimum = vload(own + PANEL + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) held[r][v] = vfma(vset(row_sums[r * row_stride + g]), minimum, held[r][v]);
        }
    }
};

template <int64_t SCHEME>
static void hold_k_panel(const Linear *l, int64_t panel, const HeldRows &x, const float *row_sums, int64_t first,
                         int64_t last, float *totals) {
    alignas(64) float scales[HELD_STEPS * 2 * PANEL];
    const int64_t steps = l->k / GROUP_STEP;
    for (int64_t s = 0, count; s < steps; s += count) {
        count = steps - s < HELD_STEPS ? steps - s : HELD_STEPS;
        for (int64_t i = 0; i < count; i++) k_scales<SCHEME>(l, panel, s + i, scales + i * 2 * PANEL);
        const int64_t groups = count * KQuant<SCHEME>::GROUPS;
        const HeldKWords<SCHEME> words{(const uint32_t *)l->weight + (panel * steps + s) * HeldKWords<SCHEME>::STEP, groups,
                                       false};
        const auto ends_of = [&](int64_t b) {
            return HeldKEnds<SCHEME>{scales, row_sums + x.begin(b) * steps + s, steps, s == 0};
        };
        hold_pass(words, ends_of, groups, x, s * (GROUP_STEP / 2), first, last, totals);
    }
}

// Does nothing and returns false where other kernels take so many rows.
template <int64_t SCHEME, class O> static bool multiply_held_k_codes(const Linear *l, const bf16_t *x, O *out, int64_t rows) {
    if (l->single_groups || rows < HELD_LEAST) return false;
    const int64_t steps = l->k / GROUP_STEP, num_sums = KQuant<SCHEME>::HAS_MINIMA ? rows * steps : 0;
    float *row_sums;
#pragma omp single copyprivate(row_sums)
    row_sums = row_buffer.reserve(num_sums + rows * (l->k / 2));
    if (num_sums) sum_rows(x, rows, steps, row_sums);
    const HeldRows held = held_rows(x, rows, l->k, row_sums + num_sums);
    multiply_held_rows(l, held, out, [&](int64_t panel, int64_t first, int64_t last, float *totals) {
        hold_k_panel<SCHEME>(l, panel, held, row_sums, first, last, totals);
    });
    return true;
}
