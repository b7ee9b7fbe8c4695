// Products whose weights are codes of 4 or 8 bits, widened inside the product to what the float kernel multiplies.
//
// A code stands for (code - zero) * scale, or for an e4m3, e2m1 or NF4 number times scale; scale and zero belong to `group`
// elements of k of one column.  What is widened, code - zero or the number, is exact in every compute type, but for NF4's
// numbers: where pairs of bf16 are multiplied, they are rounded to bf16.  Within a group the
// sum is that of the float kernel of the instruction set (gemm.h, tile_order.h), from zero; then total = fma(sum, scale,
// total), group by group.  So a row's bits depend on that row alone, as with float weights.
//
// Words of 32 bits hold the codes of one column: [panel][k / codes of a word][PANEL].  Code i begins at bit i % 2 * 16 +
// i / 2 * bits: a shift leaves the pair that an instruction for pairs of bf16 wants in the halves of a lane.  INT8_CODES
// lie as [panel][k][PANEL] bytes, in as much memory: a load of bytes gives the lanes of a code without a shift.
// k and groups are multiples of GROUP_STEP.
#pragma once

#include "gemm.h"
#include "integer_simd.h"

constexpr int GROUP_STEP = 32;
constexpr int AHEAD_WORDS = 4096;  // of codes that are read once, into the second cache: 16 KiB

constexpr int64_t SYMMETRIC_INT4 = -INT4_CODES;  // INT4_CODES without zeros: a table knows that 8 stands for zero

constexpr int codes_of_word(int64_t scheme) {
    return scheme == INT4_CODES || scheme == SYMMETRIC_INT4 || scheme == MXFP4_CODES || scheme == NF4_CODES ? 8 : 4;
}

static inline int64_t code_bytes(int64_t scheme, int64_t n, int64_t k) {
    return panels_of(n) * PANEL * (k / codes_of_word(scheme)) * 4;
}

static inline void pack_code_bytes(const uint8_t *codes, uint8_t *out, int64_t n, int64_t k, int threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t p = 0; p < panels_of(n); p++)
        for (int64_t step = 0; step < k; step += GROUP_STEP)  // what is written stays in the first cache
            for (int64_t c = 0; c < PANEL; c++)
                for (int64_t i = step; i < step + GROUP_STEP; i++)
                    out[(p * k + i) * PANEL + c] = p * PANEL + c < n ? codes[(p * PANEL + c) * k + i] : 0;
}

static inline void pack_codes(int64_t scheme, const uint8_t *codes, uint32_t *out, int64_t n, int64_t k, int threads) {
    const int64_t per = codes_of_word(scheme), bits = 32 / per, words = k / per;
    if (scheme == INT8_CODES) return pack_code_bytes(codes, (uint8_t *)out, n, k, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t p = 0; p < panels_of(n); p++)
        for (int64_t w = 0; w < words; w++)
            for (int64_t c = 0; c < PANEL; c++) {
                const int64_t column = p * PANEL + c;
                uint32_t word = 0;
                for (int64_t i = 0; i < per && column < n; i++)
                    word |= (uint32_t)codes[column * k + w * per + i] << (i % 2 * 16 + i / 2 * bits);
                out[(p * words + w) * PANEL + c] = word;
            }
}

// -- widening --------------------------------------------------------------------------------------------------------------

// The words of LANES columns.
template <int64_t SCHEME> struct CodeWords {
    ivec bits;
    void read(const uint32_t *words) { bits = iload(words); }
};

template <> struct CodeWords<INT8_CODES> {
    const uint8_t *bytes;
    void read(const uint32_t *words) { bytes = (const uint8_t *)words; }
    template <int I> vec code() const { return to_floats(load_signed_bytes(bytes + I * PANEL)); }
};

// Where the words of vector `v` of a panel begin.
template <int64_t SCHEME> static inline const uint32_t *words_at(const uint32_t *words, int v) {
    return words + (SCHEME == INT8_CODES ? v * LANES / 4 : v * LANES);
}

// Unit J of the words of LANES columns; `zero` is that of INT4_CODES, for each code of a unit.
template <int PER_UNIT, int64_t SCHEME, int J> struct Widened;

template <int J> struct Widened<1, INT8_CODES, J> {
    static inline vec of(const CodeWords<INT8_CODES> &words, ivec) { return words.code<J>(); }
};

template <int64_t SCHEME, int J> struct Widened<1, SCHEME, J> {  // one float
    static constexpr int BITS = 32 / codes_of_word(SCHEME), AT = J % 2 * 16 + J / 2 * BITS;
    static inline vec of(const CodeWords<SCHEME> &of_words, ivec zero) {
        const ivec words = of_words.bits;
        if (SCHEME == INT4_CODES) return to_floats(isub(iand(ishr<AT>(words), iset(15)), zero));
        if (SCHEME == SYMMETRIC_INT4) return to_floats(isub(iand(ishr<AT>(words), iset(15)), iset(8)));
        if (SCHEME == MXFP4_CODES) return e2m1_floats(ishr<AT>(words));
        if (SCHEME == NF4_CODES) return nf4_floats(ishr<AT>(words));
        return e4m3_floats(ishr<AT>(words));
    }
};

static inline ivec zeros_at(const uint8_t *zeros, int per_unit) {
    const ivec zero = zeros ? load_bytes(zeros) : iset(8);
    return per_unit == 2 ? ior(zero, ishl<16>(zero)) : zero;
}
static inline ivec zeros_of(const Linear *l, int64_t at, int per_unit) {
    return zeros_at(l->zeros ? l->zeros + at : nullptr, per_unit);
}

#if defined(__AVX512BF16__)
// bf16 of the number that the 5 bits of an index stand for, 0 to 15 and -16 to -1.
alignas(64) static const uint16_t FIVE_BITS[32] = {
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
    0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130, 0xc120, 0xc110,
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
// bf16 of code - 8 by the 4 bits of a code, twice: a look-up ignores the bit above them.
alignas(64) static const uint16_t FOUR_BITS[32] = {
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
// bf16 of the e2m1 numbers by their 4 bits, twice.
alignas(64) static const uint16_t E2M1[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
    0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
    0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
// bf16 next to the NF4 numbers by their 4 bits, twice.
alignas(64) static const uint16_t NF4[32] = {
    0xbf80, 0xbf32, 0xbf06, 0xbeca, 0xbe92, 0xbe3d, 0xbdba, 0x0000,
    0x3da3, 0x3e25, 0x3e7c, 0x3ead, 0x3ee2, 0x3f10, 0x3f39, 0x3f80,
    0xbf80, 0xbf32, 0xbf06, 0xbeca, 0xbe92, 0xbe3d, 0xbdba, 0x0000,
    0x3da3, 0x3e25, 0x3e7c, 0x3ead, 0x3ee2, 0x3f10, 0x3f39, 0x3f80};
// bf16 of the e4m3 numbers without exponent.
alignas(64) static const uint16_t SMALL_E4M3[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};

template <int J> struct Widened<2, INT8_CODES, J> {  // the lower half of a float is zero
    static inline vec of(const CodeWords<INT8_CODES> &words, ivec) {
        const vec even = words.code<2 * J>(), odd = words.code<2 * J + 1>();
        return as_floats(ior(ishr<16>(_mm512_castps_si512(even)), _mm512_castps_si512(odd)));
    }
};

template <int64_t SCHEME, int J> struct Widened<2, SCHEME, J> {  // two bf16
    static inline vec of(const CodeWords<SCHEME> &of_words, ivec zero) {
        const ivec words = of_words.bits;
        if (SCHEME == INT4_CODES) {
            const ivec code = iand(ishr16<(SCHEME == INT4_CODES ? 4 * J : 0)>(words), iset(0x000f000f));
            return as_floats(_mm512_permutexvar_epi16(_mm512_sub_epi16(code, zero), _mm512_load_si512(FIVE_BITS)));
        }
        if (codes_of_word(SCHEME) == 8) {
            const uint16_t *table = SCHEME == NF4_CODES ? NF4 : SCHEME == MXFP4_CODES ? E2M1 : FOUR_BITS;
            const ivec code = J == 0 ? words : ishr16<(codes_of_word(SCHEME) == 8 ? 4 * J : 0)>(words);
            return as_floats(_mm512_permutexvar_epi16(code, _mm512_load_si512(table)));
        }
        const ivec code = ishr16<(J == 0 ? 0 : 8)>(words), size = iand(code, iset(0x007f007f));
        const ivec normal = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
        const __mmask32 is_small = _mm512_cmplt_epi16_mask(size, _mm512_set1_epi16(8));
        const ivec number = _mm512_mask_permutexvar_epi16(normal, is_small, size, _mm512_load_si512(SMALL_E4M3));
        return as_floats(ior(number, _mm512_slli_epi16(iand(code, iset(0x00800080)), 8)));
    }
};
#endif

// -- products --------------------------------------------------------------------------------------------------------------

struct GroupEnd {  // what is done with the sums when a product ends
    const float *scales;  // of PANEL columns; null: the group goes on, and the sums are put aside
    bool is_first;        // group of the row
};

template <class U, int64_t SCHEME, int ROWS, int J = 0>
static inline void add_units(const CodeWords<SCHEME> *words, const ivec *zeros, const float *x, int64_t stride,
                             vec sums[ROWS][STRIP]) {
    constexpr int units = codes_of_word(SCHEME) / U::PER_UNIT;
#pragma GCC unroll 4
    for (int v = 0; v < STRIP; v++) {
        const vec column = Widened<U::PER_UNIT, SCHEME, J>::of(words[v], zeros[v]);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) sums[r][v] = U::madd(column, x[r * stride + J], sums[r][v]);
    }
    if constexpr (J + 1 < units) add_units<U, SCHEME, ROWS, J + 1>(words, zeros, x, stride, sums);
}

template <int ROWS>
static inline void end_group(const vec sums[ROWS][STRIP], const GroupEnd &end, float *raw, float *totals) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) {
            const int64_t at = r * PANEL + v * LANES;
            if (!end.scales)
                vstore(raw + at, sums[r][v]);
            else if (end.is_first)
                vstore(totals + at, vmul(sums[r][v], vload(end.scales + v * LANES)));
            else
                vstore(totals + at, vfma(sums[r][v], vload(end.scales + v * LANES), vload(totals + at)));
        }
}

template <int ROWS> static inline void zero_sums(vec sums[ROWS][STRIP]) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) sums[r][v] = vset(0);
}

// Adds the products of units that were widened before.
template <class U, int ROWS>
static inline void add_wide_units(const float *wide, const float *x, int64_t stride, int64_t units, vec sums[ROWS][STRIP]) {
    for (int64_t u = 0; u < units; u++, wide += PANEL) {
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) {
            const vec column = vload(wide + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) sums[r][v] = U::madd(column, x[r * stride + u], sums[r][v]);
        }
    }
}

// A few rows times words: every word is widened in registers, once for all rows.
template <class U, int64_t SCHEME, int ROWS>
static inline void word_product(const uint32_t *words, const ivec *zeros, const float *x, int64_t stride, int units,
                                bool begins, const GroupEnd &end, float *raw, float *totals) {
    constexpr int per_word = codes_of_word(SCHEME) / U::PER_UNIT;
    vec sums[ROWS][STRIP];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) sums[r][v] = begins ? vset(0) : vload(raw + r * PANEL + v * LANES);
    for (int u = 0; u < units; u += per_word, words += PANEL) {
        CodeWords<SCHEME> loaded[STRIP];
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) loaded[v].read(words_at<SCHEME>(words, v));
        add_units<U, SCHEME, ROWS>(loaded, zeros, x + u, stride, sums);
    }
    end_group<ROWS>(sums, end, raw, totals);
}

// The same times units that were widened before, for many rows.
template <class U, int ROWS>
static inline void unit_product(const float *wide, const float *x, int64_t stride, int units, bool begins,
                                const GroupEnd &end, float *raw, float *totals) {
    vec sums[ROWS][STRIP];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) sums[r][v] = begins ? vset(0) : vload(raw + r * PANEL + v * LANES);
    add_wide_units<U, ROWS>(wide, x, stride, units, sums);
    end_group<ROWS>(sums, end, raw, totals);
}

template <int PER_UNIT, int64_t SCHEME, int J = 0>
static inline void widen_word(const CodeWords<SCHEME> &words, ivec zero, float *wide) {
    vstore(wide + J * PANEL, Widened<PER_UNIT, SCHEME, J>::of(words, zero));
    if constexpr ((J + 1) * PER_UNIT < codes_of_word(SCHEME)) widen_word<PER_UNIT, SCHEME, J + 1>(words, zero, wide);
}

// AHEAD: words that are fetched before they are read; 0 is none.
template <int PER_UNIT, int64_t SCHEME, int AHEAD = 0>
static void widen(const uint32_t *words, const ivec *zeros, int units, float *wide) {
    constexpr int per_word = codes_of_word(SCHEME) / PER_UNIT;
    for (int u = 0; u < units; u += per_word, words += PANEL, wide += per_word * PANEL) {
        if (AHEAD) prefetch<_MM_HINT_T1>((const float *)words + AHEAD, PANEL / LINE_FLOATS);
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) {
            CodeWords<SCHEME> loaded;
            loaded.read(words_at<SCHEME>(words, v));
            widen_word<PER_UNIT, SCHEME>(loaded, zeros[v], wide + v * LANES);
        }
    }
}

#include "code_panel.h"
