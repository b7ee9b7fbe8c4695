// Rows of KV as codes of one byte, and behind them their scale, a bfloat16: memory/kv_codes.py is the definition.
//
// Codes are exact in float and bf16.  Kernels multiply codes, and apply the scale of a key to its score and that of a
// value to its weight, in float.  Packed pages (packed_keys.h) hold the codes of 16 tokens, and behind them the scales.
#pragma once

#include "integer_simd.h"
#include "tiles.h"

struct int8_code {
    uint8_t bits;
};
struct e4m3_code {
    uint8_t bits;
};
constexpr int64_t INT8_ROWS = 1, E4M3_ROWS = 2;  // Step.codes; 0 is none
constexpr int64_t SCALE_BYTES = 2;
constexpr float LEAST_SIZE = 1e-30f;

template <class P> constexpr bool is_code = false;
template <> constexpr bool is_code<int8_code> = true;
template <> constexpr bool is_code<e4m3_code> = true;

// -- writing ---------------------------------------------------------------------------------------------------------------

// A float's bits, rounded up to those of a bfloat16 above or equal.
static inline uint32_t rounded_up(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits + 0xffff) >> 16 << 16;
}

static inline uint8_t e4m3_of(float x) {  // |x| of at most about 448; ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    const float small = __builtin_rintf(__builtin_fabsf(x) * 512.0f);
    const uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    const uint32_t code = size < 0x3c800000 ? (uint32_t)small : normal < 0x7e ? normal : 0x7e;  // below 2^-6: no exponent
    return (uint8_t)(sign | code);
}

static inline float largest_code(int8_code) { return 127.0f; }
static inline float largest_code(e4m3_code) { return 448.0f; }
static inline int8_code code_of(float x, int8_code) { return int8_code{(uint8_t)(int8_t)(int)__builtin_rintf(x)}; }
static inline e4m3_code code_of(float x, e4m3_code) { return e4m3_code{e4m3_of(x)}; }

// Codes [dim] of finite numbers; returns their scale.
template <class T, class P> static bf16_t write_codes(const T *from, P *codes, int64_t dim) {
    float x[1024];
    vec most = vset(0);
    for (int64_t d = 0; d < dim; d += LANES) {
        const vec v = vload(from + d, (int)(dim - d));
        vstore(x + d, v, (int)(dim - d));
        most = vmax(most, vmax(v, vsub(vset(0), v)));
    }
    const float found = vmaximum(most), size = found < LEAST_SIZE ? 0 : found;
    const uint32_t bits = rounded_up(size / largest_code(P()));
    float scale;
    memcpy(&scale, &bits, 4);
    if (scale > 0)
        for (int64_t d = 0; d < dim; d++) codes[d] = code_of(x[d] / scale, P());
    else
        memset(codes, 0, dim);
    return bf16_t{(uint16_t)(bits >> 16)};
}

// -- reading ---------------------------------------------------------------------------------------------------------------

// Numbers of LANES codes, or of the first n.
static inline vec vload(const int8_code *p) { return to_floats(load_signed_bytes((const uint8_t *)p)); }
static inline vec vload(const e4m3_code *p) { return e4m3_floats(load_bytes((const uint8_t *)p)); }
template <class P> static inline vec vload_codes(const P *p, int64_t n) {
    P tail[LANES] = {};
    if (n < LANES) memcpy(tail, p, n);
    return vload(n < LANES ? tail : p);
}

#if defined(__AVX512BF16__)
// Pairs of bf16 of LANES codes and as many others.
static inline vec vload_pairs(const int8_code *even, const int8_code *odd) {
    const ivec low = _mm512_srli_epi32(_mm512_castps_si512(vload(even)), 16), high = _mm512_castps_si512(vload(odd));
    return as_floats(ior(iand(high, iset((int32_t)0xffff0000)), low));
}
static inline vec vload_pairs(const e4m3_code *even, const e4m3_code *odd) {
    // numbers below 2^-6 have no exponent
    const ivec small = _mm512_setr_epi32(0x3b000000, 0x3bc03b80, 0x3c203c00, 0x3c603c40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const ivec code = ior(load_bytes((const uint8_t *)even), ishl<16>(load_bytes((const uint8_t *)odd)));
    const ivec size = iand(code, iset(0x7f007f)), normal = iadd(ishl<4>(size), iset(0x3c003c00));
    const ivec number = _mm512_mask_permutexvar_epi16(normal, _mm512_cmplt_epu16_mask(size, iset(0x80008)), size, small);
    return as_floats(ior(iand(ishl<8>(code), iset((int32_t)0x80008000)), number));
}
#endif

static inline vec vload_scales(const void *scales) { return vload((const bf16_t *)scales); }

template <class P> static inline float scale_of(const P *row, int64_t dim) {
    bf16_t scale;
    memcpy(&scale, row + dim, SCALE_BYTES);
    return to_float(scale);
}

// Codes of the rows of a tile as numbers of T [keys][stride], and their scales; null rows stay null and have the scale 0.
template <class T, class P>
static void widen_rows(const P *const *rows, int keys, int64_t dim, T *numbers, int64_t stride, const T **wide,
                       float *scales) {
    for (int k = 0; k < keys; k++) {
        wide[k] = rows[k] ? numbers + k * stride : nullptr;
        scales[k] = rows[k] ? scale_of(rows[k], dim) : 0;
        for (int64_t d = 0; rows[k] && d < dim; d += LANES)
            vstore(numbers + k * stride + d, vload_codes(rows[k] + d, dim - d), (int)(dim - d));
    }
}
