// Norms, the activation and the greedy sampler: one pass over memory each, a row computed from that row alone.
//
// dtype: 0 float, 1 bf16, 2 f16.  Rows are contiguous unless a stride says otherwise; sizes are in elements.
#include "region.h"
#include "simd.h"

static constexpr int64_t SERIAL_ELEMENTS = 65536;  // below this a second thread saves less than it can cost

static inline int threads_for(int64_t elements, int threads) { return elements < SERIAL_ELEMENTS ? 1 : threads; }

template <class T> static float sum_of_squares(const T *x, int64_t n) {
    vec a = vset(0), b = vset(0);
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vec u = vload(x + i), v = vload(x + i + LANES);
        a = vfma(u, u, a);
        b = vfma(v, v, b);
    }
    for (; i < n; i += LANES) {
        vec u = vload(x + i, (int)(n - i));
        a = vfma(u, u, a);
    }
    return vsum(vadd(a, b));
}

template <class T> static void norm_row(const T *x, const T *weight, T *out, int64_t n, float eps) {
    vec scale = vset(1.0f / __builtin_sqrtf(sum_of_squares(x, n) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES) {
        int m = (int)(n - i);
        vstore(out + i, vmul(vmul(vload(x + i, m), scale), vload(weight + i, m)), m);
    }
}

template <class T> static void add_row(const T *x, T *residual, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int m = (int)(n - i);
        vstore(residual + i, vadd(vload(residual + i, m), vload(x + i, m)), m);
    }
}

template <class T>
static void rms_norm(const T *x, T *residual, const T *weight, T *out, int64_t rows, int64_t n, float eps) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        if (residual) add_row(x + r * n, residual + r * n, n);
        norm_row(residual ? residual + r * n : x + r * n, weight, out + r * n, n, eps);
    }
}

template <class T> static void silu_mul(const T *gate_up, T *out, int64_t rows, int64_t n) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *gate = gate_up + r * 2 * n, *up = gate + n;
        for (int64_t i = 0; i < n; i += LANES) {
            int m = (int)(n - i);
            vec g = vload(gate + i, m);
            vec bounded = vmax(vset(-126.0f), vmul(g, vset(-1.44269504f)));  // 2^126 still is finite
            bounded = vsub(vset(0), vmax(vsub(vset(0), bounded), vset(-126.0f)));
            vec silu = vdiv(g, vadd(vset(1.0f), vexp2(bounded)));
            vstore(out + r * n + i, vmul(silu, vload(up + i, m)), m);
        }
    }
}

template <class T> static void add_finite(const T *x, T *residual, uint8_t *is_finite, int64_t rows, int64_t n) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        add_row(x + r * n, residual + r * n, n);
        vec zeros = vset(0);  // x * 0 is 0 where x is finite, else NaN
        for (int64_t i = 0; i < n; i += LANES) zeros = vfma(vload(residual + r * n + i, (int)(n - i)), vset(0), zeros);
        is_finite[r] = vsum(zeros) == 0.0f;
    }
}

// The lowest index among equal maxima; is_finite says whether every element is.
template <class T> static void argmax_row(const T *x, int64_t n, int64_t *index, uint8_t *is_finite) {
    vec best = vset(-__builtin_inff()), zeros = vset(0);
    for (int64_t i = 0; i < n; i += LANES) {
        int m = (int)(n - i < LANES ? n - i : LANES);
        vec v = vload(x + i, m);
        zeros = vfma(v, vset(0), zeros);
        best = vmax(best, vkeep(v, 0, m, vset(-__builtin_inff())));
    }
    *is_finite = vsum(zeros) == 0.0f;
    *index = 0;
    if (!*is_finite) return;
    float most = vmaximum(best);
    for (int64_t i = 0; i < n; i++)
        if (to_float(x[i]) == most) {
            *index = i;
            return;
        }
}

template <class T> static void argmax(const T *x, int64_t *indices, uint8_t *is_finite, int64_t rows, int64_t n) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) argmax_row(x + r * n, n, indices + r, is_finite + r);
}

void region_rms_norm(int dtype, const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t n,
                     float eps) {
    DISPATCH(dtype, rms_norm((const T *)x, (T *)residual, (const T *)weight, (T *)out, rows, n, eps));
}

void region_silu_mul(int dtype, const void *gate_up, void *out, int64_t rows, int64_t n) {
    DISPATCH(dtype, silu_mul((const T *)gate_up, (T *)out, rows, n));
}

void region_add_finite(int dtype, const void *x, void *residual, uint8_t *is_finite, int64_t rows, int64_t n) {
    DISPATCH(dtype, add_finite((const T *)x, (T *)residual, is_finite, rows, n));
}

extern "C" {

void stratos_rms_norm(int dtype, const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t n,
                      float eps, int threads) {
#pragma omp parallel num_threads(threads_for(rows * n, threads))
    region_rms_norm(dtype, x, residual, weight, out, rows, n, eps);
}

void stratos_silu_mul(int dtype, const void *gate_up, void *out, int64_t rows, int64_t n, int threads) {
#pragma omp parallel num_threads(threads_for(rows * n, threads))
    region_silu_mul(dtype, gate_up, out, rows, n);
}

void stratos_argmax(int dtype, const void *x, int64_t *indices, uint8_t *is_finite, int64_t rows, int64_t n,
                    int threads) {
#pragma omp parallel num_threads(threads_for(rows * n, threads))
    DISPATCH(dtype, argmax((const T *)x, indices, is_finite, rows, n));
}

}  // extern "C"
