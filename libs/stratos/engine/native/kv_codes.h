// Rows of KV as codes of one byte, and behind them their scale, a bfloat16: memory/kv_codes.py is the definition.
//
// Codes are exact in float and bf16.  Kernels multiply codes, and apply the scale of a key to its score and that of a
// value to its weight, in float.
#pragma once

#include "integer_simd.h"
#include "tiles.h"

constexpr int64_t INT8_ROWS = 1, E4M3_ROWS = 2;  // Step.codes; 0 is none
constexpr int64_t SCALE_BYTES = 2;
constexpr float LEAST_SIZE = 1e-30f;

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

// Writes a row of finite numbers.
template <class T> static void write_row(int64_t codes, const T *from, uint8_t *row, int64_t dim) {
    float x[1024];
    vec most = vset(0);
    for (int64_t d = 0; d < dim; d += LANES) {
        const vec v = vload(from + d, (int)(dim - d));
        vstore(x + d, v, (int)(dim - d));
        most = vmax(most, vmax(v, vsub(vset(0), v)));
    }
    const float largest = codes == INT8_ROWS ? 127.0f : 448.0f, found = vmaximum(most), size = found < LEAST_SIZE ? 0 : found;
    const uint32_t bits = rounded_up(size / largest);
    float scale;
    memcpy(&scale, &bits, 4);
    const uint16_t stored = (uint16_t)(bits >> 16);
    memcpy(row + dim, &stored, SCALE_BYTES);
    if (!(scale > 0)) {
        memset(row, 0, dim);
    } else if (codes == INT8_ROWS) {
        for (int64_t d = 0; d < dim; d++) row[d] = (uint8_t)(int8_t)(int)__builtin_rintf(x[d] / scale);
    } else {
        for (int64_t d = 0; d < dim; d++) row[d] = e4m3_of(x[d] / scale);
    }
}

static inline float scale_of(const uint8_t *row, int64_t dim) {
    uint16_t stored;
    memcpy(&stored, row + dim, SCALE_BYTES);
    return to_float(bf16_t{stored});
}

// Numbers of LANES codes of a row from dimension `d` on.
static inline vec code_floats(int64_t codes, const uint8_t *row, int64_t d, int64_t dim) {
    uint8_t tail[LANES] = {0};
    const uint8_t *from = row + d;
    if (dim - d < LANES) {
        memcpy(tail, from, dim - d);
        from = tail;
    }
    const ivec code = load_bytes(from);
    return codes == INT8_ROWS ? to_floats(ishr_signed<24>(ishl<24>(code))) : e4m3_floats(code);
}

// Codes of the rows of a tile as numbers of T [keys][stride], and their scales; null rows stay null and have the scale 0.
template <class T>
static void widen_rows(int64_t codes, const uint8_t *const *rows, int keys, int64_t dim, T *numbers, int64_t stride,
                       const T **wide, float *scales) {
    for (int k = 0; k < keys; k++) {
        wide[k] = rows[k] ? numbers + k * stride : nullptr;
        scales[k] = rows[k] ? scale_of(rows[k], dim) : 0;
        for (int64_t d = 0; rows[k] && d < dim; d += LANES)
            vstore(numbers + k * stride + d, code_floats(codes, rows[k], d, dim), (int)(dim - d));
    }
}
