// Blocks of rows times whole groups of codes, for kernels that add in the order of the inputs; code_panel.h includes this.
//
// A pass takes groups of DEPTH units, and of a single block all groups of a panel.  Codes of several blocks are widened once
// in a pass, those of one block in registers.  Codes are fetched long before they are read.  The order of every sum is that
// of codes.h and k_quants.h.
#pragma once

constexpr int GROUPS_AHEAD = 2048;  // words of codes that are fetched before they are read: 8 KiB

constexpr int64_t SHORT_PASS_ROWS = 64;  // up to so many rows are multiplied while the next group is widened

// Sums of `count` groups that begin at x, for a block of rows.
template <class U, int ROWS, class Groups, class Ends>
__attribute__((noinline)) static void sum_block(const Groups &groups, const Ends &ends, int64_t count, const float *x,
                                                int64_t stride, float *totals) {
    for (int64_t g = 0; g < count; g++) {
        vec sums[ROWS][STRIP];
        zero_sums<ROWS>(sums);
        groups.template add<ROWS>(g, x, stride, sums);
        ends.template end<ROWS>(g, sums, totals);
    }
}

template <class U> struct WideGroups {  // that were widened
    const float *wide;
    int64_t units;  // of a group

    template <int ROWS> void add(int64_t g, const float *x, int64_t stride, vec sums[ROWS][STRIP]) const {
        add_wide_units<U, ROWS>(wide + g * units * PANEL, x + g * units, stride, units, sums);
    }
};

template <class U, int64_t SCHEME> struct WordGroups {
    static constexpr int PER_WORD = codes_of_word(SCHEME) / U::PER_UNIT;
    const uint32_t *words;
    const uint8_t *zeros;  // [groups][PANEL] of INT4_CODES
    int64_t units;         // of a group
    bool fetches;          // where they are multiplied as they are

    const uint32_t *words_of(int64_t g) const { return words + g * (units / PER_WORD) * PANEL; }

    void read_zeros(int64_t g, ivec zero[STRIP]) const {
        for (int v = 0; v < STRIP; v++)
            zero[v] = SCHEME == INT4_CODES ? zeros_at(zeros + g * PANEL + v * LANES, U::PER_UNIT) : iset(0);
    }

    void widen_all(int64_t count, float *wide) const {
        for (int64_t g = 0; g < count; g++) {
            ivec zero[STRIP];
            read_zeros(g, zero);
            widen<U::PER_UNIT, SCHEME, AHEAD_WORDS>(words_of(g), zero, (int)units, wide + g * units * PANEL);
        }
    }

    template <int ROWS> void add(int64_t g, const float *x, int64_t stride, vec sums[ROWS][STRIP]) const {
        const uint32_t *at = words_of(g);
        ivec zero[STRIP];
        read_zeros(g, zero);
        x += g * units;
        for (int64_t u = 0; u < units; u += PER_WORD, at += PANEL) {
            if (fetches) prefetch<_MM_HINT_T1>((const float *)at + GROUPS_AHEAD, PANEL / LINE_FLOATS);
            CodeWords<SCHEME> loaded[STRIP];
#pragma GCC unroll 4
            for (int v = 0; v < STRIP; v++) loaded[v].read(words_at<SCHEME>(at, v));
            add_units<U, SCHEME, ROWS>(loaded, zero, x + u, stride, sums);
        }
    }
};

struct CodeEnds {
    const float *scales;  // [groups][PANEL]
    bool is_first;        // of the row's groups

    template <int ROWS> void end(int64_t g, const vec sums[ROWS][STRIP], float *totals) const {
        end_group<ROWS>(sums, GroupEnd{scales + g * PANEL, is_first && g == 0}, nullptr, totals);
    }
};

// Rows of a panel and some of its inputs, as units.
template <class T> struct GivenRows {
    typedef typename UnitsOf<T>::type U;
    const T *x;
    int64_t k, count, blocks;
    bool is_direct;
    alignas(64) float copied[MAX_ROWS * DEPTH];

    GivenRows(const T *x, int64_t k, int64_t rows)
        : x(x), k(k), count(rows), blocks(num_blocks_of<U>(rows)), is_direct(has_units<T>(k)) {}

    // Calls `multiply` with each block: rows, where they lie, their stride, and the first of them.
    template <class F> inline void each_block(int64_t at, int64_t inputs, const F &multiply) {
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t first = block_begin<U>(count, b), last = block_begin<U>(count, b + 1);
            const T *given = x + first * k + at;
            for (int64_t r = 0; !is_direct && r < last - first; r++) copy_units(given + r * k, inputs, copied + r * DEPTH);
            multiply(last - first, is_direct ? (const float *)given : copied, is_direct ? k / U::PER_UNIT : DEPTH, first);
        }
    }
};

// Does nothing and returns false where the weight, or so many rows of it, is for the products of single groups.
template <int64_t SCHEME, class T>
static bool sum_code_groups(const Linear *l, int64_t panel, const T *x, int64_t rows, float *totals) {
    typedef typename UnitsOf<T>::type U;
    alignas(64) float wide[DEPTH * PANEL];
    GivenRows<T> given(x, l->k, rows);
    const int64_t groups = l->k / l->group, units = l->group / U::PER_UNIT;
    const bool is_short = units <= DEPTH || (given.is_direct && rows <= MAX_ROWS);
    if (l->single_groups || !is_short) return false;
    const bool widens = given.blocks > 1, is_whole = given.blocks == 1 && given.is_direct;
    const int64_t depth = widens && rows <= SHORT_PASS_ROWS ? 1 : DEPTH, most = is_whole ? groups : units < depth ? depth / units : 1;
    for (int64_t g = 0, count; g < groups; g += count) {
        count = groups - g < most ? groups - g : most;
        const int64_t at = panel * groups + g;
        WordGroups<U, SCHEME> words{
            (const uint32_t *)l->weight + at * l->group / codes_of_word(SCHEME) * PANEL, l->zeros + at * PANEL, units, false};
        const CodeEnds ends{l->scales + at * PANEL, g == 0};
        if (widens) words.widen_all(count, wide);
        given.each_block(g * l->group, count * l->group, [&](int64_t r, const float *block, int64_t stride, int64_t first) {
            float *own = totals + first * PANEL;
            words.fetches = first == 0;
            if (widens)
                BY_ROWS(r, (sum_block<U, R>(WideGroups<U>{wide, units}, ends, count, block, stride, own)))
            else
                BY_ROWS(r, (sum_block<U, R>(words, ends, count, block, stride, own)))
        });
    }
    return true;
}
