// Products with codes whose scales have a scale: K-quants of GGUF files, of 4, 5 and 6 bits, and NVFP4.
//
//   Q4_K, Q5_K   code * (d * scale) - dmin * minimum   for each 32 inputs; d and dmin of 256 inputs
//   Q6_K         (code - 32) * (d * scale)             for each 16 inputs; scale is a byte with a sign, d of 256 inputs
//   NVFP4        number * (d * scale)                  for each 16 inputs; number is e2m1, scale e4m3, d of a column
//
// What is widened, the code, code - 32 or the number, is exact in every compute type.  Within a group the sum is that of
// the float kernel of the instruction set, from zero; then total = fma(sum, d * scale, total), and where there are minima
// total = fma(sum of the row's 32 inputs, -dmin * minimum, total).  So a row's bits depend on that row alone.
//
// A step is 32 inputs of a panel: [panel][step][words][PANEL].  Four words hold the low nibbles as in codes.h, one (Q5_K)
// or two (Q6_K) the high bits: pair p of the step has them at bit p of both halves of the word, or 2 (p % 8) of word p / 8.
#pragma once

#include "codes.h"
#include "row_buffer.h"

constexpr int SUPER = 256, STEP_WORDS = 4;

template <int64_t SCHEME> struct KQuant {
    static constexpr int HIGH_BITS = SCHEME == Q5_K_CODES ? 1 : SCHEME == Q6_K_CODES ? 2 : 0, WORDS = STEP_WORDS + HIGH_BITS;
    static constexpr bool HAS_MINIMA = SCHEME == Q4_K_CODES || SCHEME == Q5_K_CODES;
    static constexpr int GROUPS = HAS_MINIMA ? 1 : 2;  // of a step
    static constexpr int FLOATS = HAS_MINIMA ? 2 : 1;  // of 256 inputs of a column: d, -dmin
};

static inline int high_bits_of(int64_t scheme) { return scheme == NVFP4_CODES ? 0 : (int)(scheme - Q4_K_CODES); }

static inline int64_t words_of_step(int64_t scheme) { return STEP_WORDS + high_bits_of(scheme); }

static inline int64_t k_code_bytes(int64_t scheme, int64_t n, int64_t k) {
    return panels_of(n) * PANEL * (k / GROUP_STEP) * words_of_step(scheme) * 4;
}

// The words of 32 codes of a column.
static inline void pack_step(int64_t scheme, const uint8_t *codes, uint32_t *words) {
    const int bits = high_bits_of(scheme), pairs = bits ? 16 / bits : 1;  // pairs of a word of high bits
    for (int i = 0; i < GROUP_STEP; i++) {
        const int half = i % 2 * 16, pair = i / 2;
        words[pair / 4] |= (uint32_t)(codes[i] & 15) << (half + pair % 4 * 4);
        if (bits) words[STEP_WORDS + pair / pairs] |= (uint32_t)(codes[i] >> 4) << (half + pair % pairs * bits);
    }
}

static inline void pack_k_codes(int64_t scheme, const uint8_t *codes, uint32_t *out, int64_t n, int64_t k, int threads) {
    const int64_t steps = k / GROUP_STEP, count = words_of_step(scheme);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t p = 0; p < panels_of(n); p++)
        for (int64_t s = 0; s < steps; s++)
            for (int64_t c = 0; c < PANEL; c++) {
                uint32_t words[STEP_WORDS + 2] = {0};
                if (p * PANEL + c < n) pack_step(scheme, codes + (p * PANEL + c) * k + s * GROUP_STEP, words);
                for (int64_t w = 0; w < count; w++) out[((p * steps + s) * count + w) * PANEL + c] = words[w];
            }
}

// -- widening --------------------------------------------------------------------------------------------------------------

// Bits from AT of each half of a lane, at 4 and above.
template <int BITS, int AT> static inline ivec high_bits(ivec word) {
    const ivec mask = iset(BITS == 1 ? 0x00100010 : 0x00300030);
    return iand(AT > 4 ? ishr16<(AT > 4 ? AT - 4 : 0)>(word) : ishl16<(AT > 4 ? 0 : 4 - AT)>(word), mask);
}

// Pair J of a word of nibbles, and of the high bits that were shifted to begin with it: codes in the halves of a lane.
template <int64_t SCHEME, int J> static inline ivec code_pair(ivec low, ivec high) {
    constexpr int bits = KQuant<SCHEME>::HIGH_BITS;
    const ivec nibbles = iand(ishr16<4 * J>(low), iset(0x000f000f));
    if constexpr (bits == 0) return nibbles;
    else return ior(nibbles, high_bits<bits, bits * J>(high));
}

template <int PER_UNIT, int64_t SCHEME, int J> struct KWidened;

template <int64_t SCHEME, int J> struct KWidened<1, SCHEME, J> {  // one float
    static inline vec of(ivec low, ivec high) {
        const ivec pair = code_pair<SCHEME, J / 2>(low, high), code = J % 2 ? ishr<16>(pair) : iand(pair, iset(0xffff));
        if (SCHEME == NVFP4_CODES) return e2m1_floats(code);
        return to_floats(SCHEME == Q6_K_CODES ? isub(code, iset(32)) : code);
    }
};

#if defined(__AVX512BF16__)
// bf16 of 0 to 31, then of -32 to -1.
struct alignas(64) ShortIntegers {
    uint16_t at[64];
    constexpr ShortIntegers() : at() {
        for (int i = 1; i < 64; i++) {
            const int size = i < 32 ? i : 64 - i;
            int exponent = 0;
            while (size >> (exponent + 1)) exponent++;
            at[i] = (uint16_t)((i < 32 ? 0 : 0x8000) | (127 + exponent) << 7 | (size - (1 << exponent)) << (7 - exponent));
        }
    }
};
static constexpr ShortIntegers SHORT_INTEGERS;

struct alignas(64) ShortNibbles {  // bf16 of 0 to 15, twice
    uint16_t at[32];
    constexpr ShortNibbles() : at() {
        for (int i = 0; i < 32; i++) at[i] = SHORT_INTEGERS.at[i % 16];
    }
};
static constexpr ShortNibbles SHORT_NIBBLES;

// The low nibble of each half of a lane and, above it, the high bits of pair J; what is above those does not matter.
template <int64_t SCHEME, int J> static inline ivec joined_bits(ivec nibble, ivec high) {
    constexpr int by = KQuant<SCHEME>::HIGH_BITS * J;
    const ivec moved = by > 4 ? ishr16<(by > 4 ? by - 4 : 0)>(high) : ishl16<(by > 4 ? 0 : 4 - by)>(high);
    return _mm512_ternarylogic_epi32(iset(0x000f000f), nibble, moved, 0xca);  // where the mask has ones the nibble
}

template <int64_t SCHEME, int J> struct KWidened<2, SCHEME, J> {  // two bf16
    static inline vec of(ivec low, ivec high) {
        const ivec nibble = J == 0 ? low : ishr16<4 * J>(low);  // and bits above it, which the first two do not look at
        if (SCHEME == NVFP4_CODES) return as_floats(_mm512_permutexvar_epi16(nibble, _mm512_load_si512(E2M1)));
        if (SCHEME == Q4_K_CODES) return as_floats(_mm512_permutexvar_epi16(nibble, _mm512_load_si512(SHORT_NIBBLES.at)));
        const ivec small = _mm512_load_si512(SHORT_INTEGERS.at), pair = joined_bits<SCHEME, J>(nibble, high);
        if (SCHEME == Q5_K_CODES) return as_floats(_mm512_permutexvar_epi16(pair, small));
        // codes 0 to 31 stand for -32 to -1
        return as_floats(_mm512_permutex2var_epi16(_mm512_load_si512(SHORT_INTEGERS.at + 32), pair, small));
    }
};
#endif

// Word `w` of a step for LANES columns, and its high bits.
template <int64_t SCHEME> struct KWord {
    ivec low, high;
    KWord(const uint32_t *step, int w) : low(iload(step + w * PANEL)), high(low) {
        constexpr int bits = KQuant<SCHEME>::HIGH_BITS;
        if constexpr (bits == 1) high = ishr16_by(iload(step + STEP_WORDS * PANEL), 4 * w);
        if constexpr (bits == 2) high = ishr16_by(iload(step + (STEP_WORDS + w / 2) * PANEL), w % 2 * 8);
    }
};

template <int PER_UNIT, int64_t SCHEME, int J = 0> static inline void widen_k_word(const KWord<SCHEME> &word, float *wide) {
    vstore(wide + J * PANEL, KWidened<PER_UNIT, SCHEME, J>::of(word.low, word.high));
    if constexpr ((J + 1) * PER_UNIT < 8) widen_k_word<PER_UNIT, SCHEME, J + 1>(word, wide);
}

// Units of a step; with tiles those of two groups of 16 inputs have as many zeros between them.
template <int PER_UNIT, int64_t SCHEME> static void widen_step(const uint32_t *step, int64_t gap, float *wide) {
    for (int w = 0; w < STEP_WORDS; w++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++)
            widen_k_word<PER_UNIT, SCHEME>(KWord<SCHEME>(step + v * LANES, w),
                                           wide + w * (8 / PER_UNIT) * PANEL + (w < 2 ? 0 : gap) + v * LANES);
}

// -- products --------------------------------------------------------------------------------------------------------------

struct KGroup {  // what ends a group
    const float *scales, *minima;  // of PANEL columns; minima have their sign turned
    const float *row_sums;         // of the inputs of the step, of every row
    int64_t row_stride;
    bool is_first;
};

template <int64_t SCHEME, int ROWS>
static inline void end_k_group(const vec sums[ROWS][STRIP], const KGroup &g, int64_t row, float *totals) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < STRIP; v++) {
            float *at = totals + (row + r) * PANEL + v * LANES;
            const vec scale = vload(g.scales + v * LANES);
            vec total = g.is_first ? vmul(sums[r][v], scale) : vfma(sums[r][v], scale, vload(at));
            if (KQuant<SCHEME>::HAS_MINIMA)
                total = vfma(vset(g.row_sums[(row + r) * g.row_stride]), vload(g.minima + v * LANES), total);
            vstore(at, total);
        }
}

template <class U, int64_t SCHEME, int ROWS, int J = 0>
static inline void add_k_units(const KWord<SCHEME> *words, const float *x, int64_t stride, vec sums[ROWS][STRIP]) {
#pragma GCC unroll 4
    for (int v = 0; v < STRIP; v++) {
        const vec column = KWidened<U::PER_UNIT, SCHEME, J>::of(words[v].low, words[v].high);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) sums[r][v] = U::madd(column, x[r * stride + J], sums[r][v]);
    }
    if constexpr ((J + 1) * U::PER_UNIT < 8) add_k_units<U, SCHEME, ROWS, J + 1>(words, x, stride, sums);
}

// Word `w` of a step, widened in registers, times the inputs that belong to it.
template <class U, int64_t SCHEME, int ROWS>
static inline void add_k_word(const uint32_t *step, int w, const float *x, int64_t stride, vec sums[ROWS][STRIP]) {
    const KWord<SCHEME> words[] = {
        KWord<SCHEME>(step, w), KWord<SCHEME>(step + LANES, w),
#if defined(__AVX512F__)
        KWord<SCHEME>(step + 2 * LANES, w), KWord<SCHEME>(step + 3 * LANES, w),
#endif
    };
    add_k_units<U, SCHEME, ROWS>(words, x, stride, sums);
}

// Group `g` of a step, widened in registers.
template <class U, int64_t SCHEME, int ROWS>
static inline void k_word_product(const uint32_t *step, int g, const float *x, int64_t stride, const KGroup &end, int64_t row,
                                  float *totals) {
    constexpr int count = STEP_WORDS / KQuant<SCHEME>::GROUPS;
    vec sums[ROWS][STRIP];
    zero_sums<ROWS>(sums);
    for (int w = g * count; w < (g + 1) * count; w++)
        add_k_word<U, SCHEME, ROWS>(step, w, x + w * (8 / U::PER_UNIT), stride, sums);
    end_k_group<SCHEME, ROWS>(sums, end, row, totals);
}

// The same with units that were widened before.
template <class U, int64_t SCHEME, int ROWS>
static inline void k_unit_product(const float *wide, int g, const float *x, int64_t stride, const KGroup &end, int64_t row,
                                  float *totals) {
    constexpr int units = GROUP_STEP / KQuant<SCHEME>::GROUPS / U::PER_UNIT;
    vec sums[ROWS][STRIP];
    zero_sums<ROWS>(sums);
    add_wide_units<U, ROWS>(wide + g * units * PANEL, x + g * units, stride, units, sums);
    end_k_group<SCHEME, ROWS>(sums, end, row, totals);
}

// Rows of one block of a step; `wide` is null where the words are to be widened in registers.
template <class U, int64_t SCHEME> struct KBlock {
    static constexpr int64_t FEW_ROWS = MAX_ROWS, GAP = 0, AHEAD = 0;
    static void multiply(ItemScope<U> &, const uint32_t *step, const float *wide, int g, const float *x, int64_t stride,
                         const KGroup &end, int64_t row, int rows, float *totals) {
        if (wide)
            BY_ROWS(rows, (k_unit_product<U, SCHEME, R>(wide, g, x, stride, end, row, totals)))
        else
            BY_ROWS(rows, (k_word_product<U, SCHEME, R>(step, g, x, stride, end, row, totals)))
    }
};

#if defined(STRATOS_TILE_ORDER)
#include "k_few_rows.h"

// A step of the tile instruction is 32 inputs: the half that is not of a group of 16 is zeros.
template <int64_t SCHEME> struct KBlock<TileUnits, SCHEME> {
    static constexpr int64_t FEW_ROWS = SCHEME == Q6_K_CODES ? 2 : 1, AHEAD = AHEAD_WORDS;
    static constexpr int64_t GAP = KQuant<SCHEME>::GROUPS > 1 ? 8 * PANEL : 0;
    static void multiply(ItemScope<TileUnits> &scope, const uint32_t *step, const float *wide, int g, const float *x,
                         int64_t stride, const KGroup &end, int64_t row, int rows, float *totals) {
        if (!wide) BY_FEW_ROWS(rows, return (few_rows_k_product<SCHEME, R>(step, g, x, stride, end, row, totals)))
        alignas(64) float sums[TileUnits::ROWS * PANEL];
        const Rows all{x, stride, TileUnits::STEP, 16 * stride};
        accumulate(scope.tiles, Operands{wide + g * 8 * PANEL, PANEL, all, TileUnits::STEP, sums, PANEL}, rows, PANEL, true);
        for (int r = 0; r < rows; r++) {
            vec loaded[1][STRIP];
            for (int v = 0; v < STRIP; v++) loaded[0][v] = vload(sums + r * PANEL + v * LANES);
            end_k_group<SCHEME, 1>(loaded, end, row + r, totals);
        }
    }
};
#endif

// Scales of the groups of a step [groups][PANEL], or its scale and its minimum.
template <int64_t SCHEME> static inline void k_scales(const Linear *l, int64_t panel, int64_t step, float *out) {
    const int64_t steps = l->k / GROUP_STEP, supers = l->k / SUPER;
    const int64_t of_super = SCHEME == NVFP4_CODES ? panel : panel * supers + step * GROUP_STEP / SUPER;
    const float *d = l->scales + of_super * KQuant<SCHEME>::FLOATS * PANEL;
    const uint8_t *bytes = l->parts + (panel * steps + step) * 2 * PANEL;
    for (int half = 0; half < 2; half++)
        for (int c = 0; c < PANEL; c += LANES) {
            const uint8_t *from = bytes + half * PANEL + c;
            const ivec part = SCHEME == Q6_K_CODES ? load_signed_bytes(from) : load_bytes(from);
            const vec whole = vload(d + (KQuant<SCHEME>::HAS_MINIMA ? half * PANEL : 0) + c);
            vstore(out + half * PANEL + c, vmul(whole, SCHEME == NVFP4_CODES ? e4m3_floats(part) : to_floats(part)));
        }
}

#include "k_groups.h"

template <class T, class O, int64_t SCHEME>
static void multiply_k_panel(const Linear *l, int64_t panel, const T *x, const float *row_sums, O *out, int64_t rows) {
    typedef typename UnitsOf<T>::type U;
    typedef KBlock<U, SCHEME> Block;
    alignas(64) float totals[CHUNK * PANEL], wide[GROUP_STEP * PANEL], scales[2 * PANEL], copied[MAX_ROWS * GROUP_STEP];
    if constexpr (U::STEP == 1)
        if (!l->single_groups) {
            sum_k_groups<SCHEME>(l, panel, x, row_sums, rows, totals);
            return store_sums<T>(l, panel, totals, rows, out);
        }
    if (Block::GAP) memset(wide + 8 * PANEL, 0, 8 * PANEL * sizeof(float));
    ItemScope<U> scope;
    const int64_t k = l->k, steps = k / GROUP_STEP, num_blocks = num_blocks_of<U>(rows);
    const bool is_direct = has_units<T>(k), widens_first = rows > Block::FEW_ROWS;
    const uint32_t *words = (const uint32_t *)l->weight + panel * steps * KQuant<SCHEME>::WORDS * PANEL;
    for (int64_t s = 0; s < steps; s++, words += KQuant<SCHEME>::WORDS * PANEL) {
        if (Block::AHEAD) prefetch<_MM_HINT_T1>((const float *)words + Block::AHEAD, KQuant<SCHEME>::WORDS * PANEL / LINE_FLOATS);
        k_scales<SCHEME>(l, panel, s, scales);
        if (widens_first) widen_step<U::PER_UNIT, SCHEME>(words, Block::GAP, wide);
        for (int64_t b = 0; b < num_blocks; b++) {
            const int64_t first = block_begin<U>(rows, b), last = block_begin<U>(rows, b + 1);
            const T *given = x + first * k + s * GROUP_STEP;
            const float *block = (const float *)given;
            int64_t stride = k / U::PER_UNIT;
            if (!is_direct) {
                for (int64_t r = 0; r < last - first; r++) copy_units(given + r * k, GROUP_STEP, copied + r * GROUP_STEP);
                block = copied, stride = GROUP_STEP;
            }
            for (int g = 0; g < KQuant<SCHEME>::GROUPS; g++) {
                const KGroup end{scales + g * PANEL, scales + PANEL, row_sums + s, steps, s + g == 0};
                Block::multiply(scope, words, widens_first ? wide : nullptr, g, block, stride, end, first,
                                (int)(last - first), totals);
            }
        }
    }
    store_sums<T>(l, panel, totals, rows, out);
}

// Sum of the inputs of every step of a row.
template <class T> static void sum_steps(const T *x, int64_t steps, float *sums) {
    for (int64_t s = 0; s < steps; s++, x += GROUP_STEP) {
        vec sum = vload(x);
        for (int i = LANES; i < GROUP_STEP; i += LANES) sum = vadd(sum, vload(x + i));
        sums[s] = vsum(sum);
    }
}

// Those of every row, by every thread of a region; ends with a barrier.
template <class T> static inline void sum_rows(const T *x, int64_t rows, int64_t steps, float *sums) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) sum_steps(x + r * steps * GROUP_STEP, steps, sums + r * steps);
}

#if defined(__AMX_BF16__)
#include "k_tiles.h"
#endif

// As multiply_held_codes().
template <int64_t SCHEME, class T, class O> static inline bool multiply_held_k_codes(const Linear *, const T *, O *, int64_t) {
    return false;
}
#if defined(__AVX512BF16__) && !defined(STRATOS_TILE_ORDER)
#include "held_k_quants.h"
#endif

template <class T, class O, int64_t SCHEME> static void multiply_k_codes_by_blocks(const Linear *l, const T *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), chunks = row_chunks(rows, panels), steps = l->k / GROUP_STEP;
    const float *row_sums = nullptr;
    if (KQuant<SCHEME>::HAS_MINIMA) {
        float *buffer;
#pragma omp single copyprivate(buffer)
        buffer = row_buffer.reserve(rows * steps);
        sum_rows(x, rows, steps, buffer);
        row_sums = buffer;
    }
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t item = 0; item < panels * chunks; item++) {
        const int64_t chunk = item / panels, first = rows * chunk / chunks, last = rows * (chunk + 1) / chunks;
        multiply_k_panel<T, O, SCHEME>(l, item % panels, x + first * l->k, row_sums + first * steps,
                                       out + first * l->stride, last - first);
    }
}

// Called by every thread of a region; ends with a barrier.
template <class T, class O, int64_t SCHEME> static void multiply_k_rows(const Linear *l, const T *x, O *out, int64_t rows) {
#if defined(__AMX_BF16__)
    if constexpr (UnitsOf<T>::type::STEP > 1)
        if (rows > FEWER_ROWS) return multiply_k_codes_by_tiles<O, SCHEME>(l, x, out, rows);
#endif
    if (!multiply_held_k_codes<SCHEME>(l, x, out, rows)) multiply_k_codes_by_blocks<T, O, SCHEME>(l, x, out, rows);
}
