// A few rows times K-quants and NVFP4 in the order of the tile instruction, by vectors, as few_rows.h; k_quants.h
// includes this.
#pragma once

// Floats of the codes in the lowest bits of lanes whose other bits are arbitrary, but for Q6_K: there 16 bits are the code's.
template <int64_t SCHEME> struct KFloats {
    vec low, high;
    KFloats()
        : low(SCHEME == NVFP4_CODES ? nibble_floats<MXFP4_CODES>(0) : vload(SIXTEEN_INTEGERS)), high(vadd(low, vset(16))) {}
    inline vec of(ivec code) const {
        if (SCHEME == Q5_K_CODES) return _mm512_permutex2var_ps(low, code, high);
        if (SCHEME != Q6_K_CODES) return _mm512_permutexvar_ps(code, low);
        // 2^23 + code, of which 2^23 + 32 is taken
        const ivec large = _mm512_ternarylogic_epi32(code, iset(0xffff), iset(0x4b000000), 0xea);
        return vsub(as_floats(large), vset(8388640.0f));
    }
};

template <int64_t SCHEME, int ROWS, int J = 0>
__attribute__((always_inline)) static inline void add_k_word(const KWord<SCHEME> *words, const KFloats<SCHEME> &floats,
                                                             const RowHalves *x, int unit, StepSums<ROWS> &sums) {
#pragma GCC unroll 4
    for (int v = 0; v < STRIP; v++) {
        const bool is_nibble = KQuant<SCHEME>::HIGH_BITS == 0;
        const ivec even = is_nibble ? ishr<4 * J>(words[v].low) : code_pair<SCHEME, J>(words[v].low, words[v].high);
        const ivec odd = is_nibble ? ishr<16 + 4 * J>(words[v].low) : ishr<16>(even);
        sums.add(Halves{floats.of(even), floats.of(odd)}, x, unit + J, v);
    }
    if constexpr (J + 1 < 4) add_k_word<SCHEME, ROWS, J + 1>(words, floats, x, unit, sums);
}

// Group `g` of a step.
template <int64_t SCHEME, int ROWS>
static inline void few_rows_k_product(const uint32_t *step, int g, const float *x, int64_t stride, const KGroup &end,
                                      int64_t row, float *totals) {
    constexpr int count = STEP_WORDS / KQuant<SCHEME>::GROUPS;
    const KFloats<SCHEME> floats;
    RowHalves halved[ROWS];
    for (int r = 0; r < ROWS; r++) halved[r].read(x + r * stride);
    StepSums<ROWS> sums;
    for (int w = g * count; w < (g + 1) * count; w++) {
        const KWord<SCHEME> words[] = {KWord<SCHEME>(step, w), KWord<SCHEME>(step + LANES, w),
                                       KWord<SCHEME>(step + 2 * LANES, w), KWord<SCHEME>(step + 3 * LANES, w)};
        add_k_word<SCHEME, ROWS>(words, floats, halved, 4 * w, sums);
    }
    vec of_group[ROWS][STRIP];
    zero_sums<ROWS>(of_group);
    sums.add_to(of_group);
    end_k_group<SCHEME, ROWS>(of_group, end, row, totals);
}
