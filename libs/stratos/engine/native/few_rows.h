// A few rows times codes in the order of the tile instruction (tile_order.h), by vectors: every code becomes a float in
// registers, once for all rows, where tiles would wait for what is widened into memory.  code_panel.h includes this.
#pragma once

// Fewer rows than tiles are faster for, of weights that come from memory.
constexpr int64_t few_rows_of(int64_t scheme) { return scheme == INT8_CODES ? 3 : 2; }

#define BY_FEW_ROWS(rows, call)                     \
    switch (rows) {                                 \
        case 1: { constexpr int R = 1; call; } break; \
        case 2: { constexpr int R = 2; call; } break; \
        default: { constexpr int R = 3; call; }       \
    }

struct Halves {  // of LANES columns: the codes of a pair, as floats
    vec even, odd;
};

static inline Halves halves_of_bf16(vec pairs) {
    const ivec bits = _mm512_castps_si512(pairs);
    return Halves{as_floats(ishl<16>(bits)), as_floats(iand(bits, iset((int)0xffff0000)))};
}

alignas(64) static const float SIXTEEN_INTEGERS[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// What the codes of 4 bits stand for; `bias` is taken off where they are integers.
template <int64_t SCHEME> static inline vec nibble_floats(float bias) {
    if (SCHEME == INT4_CODES) return vsub(vload(SIXTEEN_INTEGERS), vset(bias));
    const uint16_t *numbers = SCHEME == NF4_CODES ? NF4 : E2M1;
    return as_floats(ishl<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)numbers))));
}

// Pair J of the words; a look-up reads the lowest 4 bits of a lane alone.
template <int64_t SCHEME, bool HAS_ZEROS, int J> static inline Halves halves(const CodeWords<SCHEME> &words, vec table, vec zero) {
    if constexpr (codes_of_word(SCHEME) == 8) {
        const vec even = _mm512_permutexvar_ps(ishr<4 * J>(words.bits), table);
        const vec odd = _mm512_permutexvar_ps(ishr<16 + 4 * J>(words.bits), table);
        return HAS_ZEROS ? Halves{vsub(even, zero), vsub(odd, zero)} : Halves{even, odd};
    } else if constexpr (SCHEME == INT8_CODES) {
        return Halves{words.template code<2 * J>(), words.template code<2 * J + 1>()};
    } else {
        return halves_of_bf16(Widened<2, SCHEME, J>::of(words, words.bits));
    }
}

// The even and the odd inputs of 16 units of a row.
struct RowHalves {
    alignas(64) float even[TileUnits::STEP], odd[TileUnits::STEP];
    void read(const float *x) {
        const Halves both = halves_of_bf16(vload(x));
        vstore(even, both.even), vstore(odd, both.odd);
    }
};

template <int ROWS> struct StepSums {  // of one step, from zero
    vec even[ROWS][STRIP], odd[ROWS][STRIP];
    StepSums() {
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < STRIP; v++) even[r][v] = odd[r][v] = vset(0);
    }
    __attribute__((always_inline)) inline void add(const Halves &w, const RowHalves *x, int unit, int v) {
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            even[r][v] = vfma(vset(x[r].even[unit]), w.even, even[r][v]);
            odd[r][v] = vfma(vset(x[r].odd[unit]), w.odd, odd[r][v]);
        }
    }
    __attribute__((always_inline)) inline void add_to(vec sums[ROWS][STRIP]) const {
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < STRIP; v++) sums[r][v] = vadd(sums[r][v], vadd(even[r][v], odd[r][v]));
    }
};

template <int64_t SCHEME, bool HAS_ZEROS, int ROWS, int J = 0>
__attribute__((always_inline)) static inline void add_word(const uint32_t *words, vec table, const vec *zeros,
                                                           const RowHalves *x, int unit, StepSums<ROWS> &sums) {
#pragma GCC unroll 4
    for (int v = 0; v < STRIP; v++) {
        CodeWords<SCHEME> loaded;
        loaded.read(words_at<SCHEME>(words, v));
        sums.add(halves<SCHEME, HAS_ZEROS, J>(loaded, table, zeros[v]), x, unit + J, v);
    }
    if constexpr ((J + 1) * 2 < codes_of_word(SCHEME))
        add_word<SCHEME, HAS_ZEROS, ROWS, J + 1>(words, table, zeros, x, unit, sums);
}

// A panel times the rows: what a group adds stays in registers.
template <int64_t SCHEME, bool HAS_ZEROS, int ROWS>
static void few_rows_panel(const Linear *l, int64_t panel, const bf16_t *x, float *out) {
    constexpr int per_word = codes_of_word(SCHEME) / 2, step_inputs = 2 * TileUnits::STEP;
    const int64_t k = l->k, groups = k / l->group;
    const uint32_t *words = (const uint32_t *)l->weight + panel * (k / codes_of_word(SCHEME)) * PANEL;
    const vec table = nibble_floats<SCHEME>(HAS_ZEROS ? 0 : 8);
    RowHalves halved[ROWS];
    vec totals[ROWS][STRIP];
    for (int64_t g = 0; g < groups; g++) {
        const int64_t of_group = (panel * groups + g) * PANEL;
        vec sums[ROWS][STRIP], zero[STRIP];
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) {
            zero[v] = HAS_ZEROS ? to_floats(load_bytes(l->zeros + of_group + v * LANES)) : vset(0);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) sums[r][v] = vset(0);
        }
        for (int64_t at = g * l->group; at < (g + 1) * l->group; at += step_inputs) {
            for (int r = 0; r < ROWS; r++) halved[r].read((const float *)(x + r * k + at));
            StepSums<ROWS> step;
            for (int u = 0; u < TileUnits::STEP; u += per_word, words += PANEL) {
                prefetch<_MM_HINT_T1>((const float *)words + AHEAD_WORDS, PANEL / LINE_FLOATS);
                add_word<SCHEME, HAS_ZEROS, ROWS>(words, table, zero, halved, u, step);
            }
            step.add_to(sums);
        }
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) {
            const vec scale = vload(l->scales + of_group + v * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++)
                totals[r][v] = g ? vfma(sums[r][v], scale, totals[r][v]) : vmul(sums[r][v], scale);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < STRIP; v++) vstore(out + r * PANEL + v * LANES, totals[r][v]);
}
