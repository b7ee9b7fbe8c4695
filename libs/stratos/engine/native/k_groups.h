// Blocks of rows times whole groups of K-quants and NVFP4, as code_groups.h; k_quants.h includes this.
#pragma once

template <class U, int64_t SCHEME> struct KGroups {
    static constexpr int GROUPS = KQuant<SCHEME>::GROUPS, WORDS = STEP_WORDS / GROUPS, PER_WORD = 8 / U::PER_UNIT;
    const uint32_t *words;  // of a step
    bool fetches;

    template <int ROWS> void add(int64_t g, const float *x, int64_t stride, vec sums[ROWS][STRIP]) const {
        const uint32_t *step = words + g / GROUPS * KQuant<SCHEME>::WORDS * PANEL;
        const int first = g % GROUPS * WORDS;
        if (fetches && KQuant<SCHEME>::HIGH_BITS && first == 0)
            prefetch<_MM_HINT_T1>((const float *)step + STEP_WORDS * PANEL + GROUPS_AHEAD,
                                  KQuant<SCHEME>::HIGH_BITS * PANEL / LINE_FLOATS);
        x += g * WORDS * PER_WORD;
        for (int w = first; w < first + WORDS; w++, x += PER_WORD) {
            if (fetches) prefetch<_MM_HINT_T1>((const float *)step + w * PANEL + GROUPS_AHEAD, PANEL / LINE_FLOATS);
            add_k_word<U, SCHEME, ROWS>(step, w, x, stride, sums);
        }
    }
};

template <int64_t SCHEME> struct KEnds {
    static constexpr int GROUPS = KQuant<SCHEME>::GROUPS;
    const float *scales;    // [steps][2][PANEL] as k_scales gives them
    const float *row_sums;  // of the first step and row
    int64_t row_stride;
    bool is_first;  // of the row's groups

    template <int ROWS> void end(int64_t g, const vec sums[ROWS][STRIP], float *totals) const {
        const float *own = scales + g * (2 / GROUPS) * PANEL;
        const KGroup of{own, own + PANEL, row_sums + g / GROUPS, row_stride, is_first && g == 0};
        end_k_group<SCHEME, ROWS>(sums, of, 0, totals);
    }
};

template <int64_t SCHEME, class T>
static void sum_k_groups(const Linear *l, int64_t panel, const T *x, const float *row_sums, int64_t rows, float *totals) {
    typedef typename UnitsOf<T>::type U;
    constexpr int64_t units = GROUP_STEP / U::PER_UNIT, most = DEPTH / units, groups = KQuant<SCHEME>::GROUPS;
    alignas(64) float wide[DEPTH * PANEL], scales[most * 2 * PANEL];
    GivenRows<T> given(x, l->k, rows);
    const int64_t steps = l->k / GROUP_STEP;
    const bool widens = given.blocks > 1;
    for (int64_t s = 0, count; s < steps; s += count) {
        count = widens && rows <= SHORT_PASS_ROWS ? 1 : steps - s < most ? steps - s : most;
        const uint32_t *words = (const uint32_t *)l->weight + (panel * steps + s) * KQuant<SCHEME>::WORDS * PANEL;
        for (int64_t i = 0; i < count; i++) {
            k_scales<SCHEME>(l, panel, s + i, scales + i * 2 * PANEL);
            if (!widens) continue;
            const uint32_t *step = words + i * KQuant<SCHEME>::WORDS * PANEL;
            prefetch<_MM_HINT_T1>((const float *)step + GROUPS_AHEAD, KQuant<SCHEME>::WORDS * PANEL / LINE_FLOATS);
            widen_step<U::PER_UNIT, SCHEME>(step, 0, wide + i * units * PANEL);
        }
        given.each_block(s * GROUP_STEP, count * GROUP_STEP, [&](int64_t r, const float *block, int64_t stride, int64_t first) {
            const KEnds<SCHEME> ends{scales, row_sums + first * steps + s, steps, s == 0};
            const KGroups<U, SCHEME> coded{words, first == 0};
            const WideGroups<U> widened{wide, units / groups};
            float *own = totals + first * PANEL;
            if (widens)
                BY_ROWS(r, (sum_block<U, R>(widened, ends, count * groups, block, stride, own)))
            else
                BY_ROWS(r, (sum_block<U, R>(coded, ends, count * groups, block, stride, own)))
        });
    }
}
