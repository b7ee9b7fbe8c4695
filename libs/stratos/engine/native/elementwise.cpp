// Norms, the activation and the greedy sampler: one pass over memory each, a row computed from that row alone.
//
// dtype: 0 float, 1 bf16, 2 f16.  Rows are contiguous unless a stride says otherwise; sizes are in elements.
#include "region.h"
#include "simd.h"

static constexpr float LOG2_E = 1.44269504f;
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

template <class T> static void norm_row(const T *x, const T *weight, T *out, int64_t n, float eps, float offset) {
    vec scale = vset(1.0f / __builtin_sqrtf(sum_of_squares(x, n) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES) {
        int m = (int)(n - i);
        vstore(out + i, vmul(vmul(vload(x + i, m), scale), vshifted(vload(weight + i, m), offset)), m);
    }
}

template <class T> static void add_row(const T *x, T *residual, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int m = (int)(n - i);
        vstore(residual + i, vadd(vload(residual + i, m), vload(x + i, m)), m);
    }
}

template <class T>
static void rms_norm(const T *x, T *residual, const T *weight, T *out, int64_t rows, int64_t n, float eps, float offset) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        if (residual) add_row(x + r * n, residual + r * n, n);
        norm_row(residual ? residual + r * n : x + r * n, weight, out + r * n, n, eps, offset);
    }
}

template <class T>
static void norm_part(T *x, const T *weight, int64_t rows, int64_t stride, int64_t n, float eps, float offset) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) norm_row(x + r * stride, weight, x + r * stride, n, eps, offset);
}

template <class T> static void scale(T *x, int64_t rows, int64_t n, float factor) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i += LANES) {
            int m = (int)(n - i);
            vstore(x + r * n + i, vmul(vload(x + r * n + i, m), vset(factor)), m);
        }
}

template <class T> static void add(const T *x, T *residual, int64_t rows, int64_t n) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) add_row(x + r * n, residual + r * n, n);
}

// gate * sigmoid(slope * gate) * up, for an activation that is written so.
struct Silu {
    vec exponent(vec g) const { return vmul(g, vset(-LOG2_E)); }
    vec gate(vec g) const { return g; }
    vec up(vec u) const { return u; }
};

struct GeluTanh {  // 0.5 g (1 + tanh t) is g * sigmoid(2 t), t = 0.798 (g + 0.0447 g^3)
    vec exponent(vec g) const {
        vec inner = vmul(vfma(vmul(g, g), vset(0.044715f), vset(1.0f)), g);
        return vmul(inner, vset(-2.0f * 0.79788456f * LOG2_E));
    }
    vec gate(vec g) const { return g; }
    vec up(vec u) const { return u; }
};

struct ClampedSwiglu {
    float limit;
    vec least(vec x) const { return vsub(vset(0), vmax(vsub(vset(0), x), vset(-limit))); }
    vec exponent(vec g) const { return vmul(g, vset(-1.702f * LOG2_E)); }
    vec gate(vec g) const { return least(g); }
    vec up(vec u) const { return vadd(vmax(vset(-limit), least(u)), vset(1.0f)); }
};

template <class T, class A> static void gated(const A &act, const T *gate_up, T *out, int64_t rows, int64_t n) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *gate = gate_up + r * 2 * n, *up = gate + n;
        for (int64_t i = 0; i < n; i += LANES) {
            int m = (int)(n - i);
            vec g = act.gate(vload(gate + i, m));
            vec activated = vdiv(g, vadd(vset(1.0f), vexp2_bounded(act.exponent(g))));  // 2^126 still is finite
            vstore(out + r * n + i, vmul(activated, act.up(vload(up + i, m))), m);
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
                     float eps, float offset) {
    DISPATCH(dtype, rms_norm((const T *)x, (T *)residual, (const T *)weight, (T *)out, rows, n, eps, offset));
}

void region_norm_part(int dtype, void *x, const void *weight, int64_t rows, int64_t stride, int64_t n, float eps,
                      float offset) {
    DISPATCH(dtype, norm_part((T *)x, (const T *)weight, rows, stride, n, eps, offset));
}

void region_scale(int dtype, void *x, int64_t rows, int64_t n, float factor) {
    DISPATCH(dtype, scale((T *)x, rows, n, factor));
}

void region_add(int dtype, const void *x, void *residual, int64_t rows, int64_t n) {
    DISPATCH(dtype, add((const T *)x, (T *)residual, rows, n));
}

void region_gated(int dtype, int activation, float limit, const void *gate_up, void *out, int64_t rows, int64_t n) {
    if (activation == 1)
        DISPATCH(dtype, gated(GeluTanh(), (const T *)gate_up, (T *)out, rows, n));
    else if (activation == 2)
        DISPATCH(dtype, gated(ClampedSwiglu{limit}, (const T *)gate_up, (T *)out, rows, n));
    else
        DISPATCH(dtype, gated(Silu(), (const T *)gate_up, (T *)out, rows, n));
}

void region_add_finite(int dtype, const void *x, void *residual, uint8_t *is_finite, int64_t rows, int64_t n) {
    DISPATCH(dtype, add_finite((const T *)x, (T *)residual, is_finite, rows, n));
}

extern "C" {

void stratos_rms_norm(int dtype, const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t n,
                      float eps, float offset, int threads) {
#pragma omp parallel num_threads(threads_for(rows * n, threads))
    region_rms_norm(dtype, x, residual, weight, out, rows, n, eps, offset);
}

void stratos_gated(int dtype, int activation, float limit, const void *gate_up, void *out, int64_t rows, int64_t n,
                   int threads) {
#pragma omp parallel num_threads(threads_for(rows * n, threads))
    region_gated(dtype, activation, limit, gate_up, out, rows, n);
}

void stratos_argmax(int dtype, const void *x, int64_t *indices, uint8_t *is_finite, int64_t rows, int64_t n,
                    int threads) {
#pragma omp parallel num_threads(threads_for(rows * n, threads))
    DISPATCH(dtype, argmax((const T *)x, indices, is_finite, rows, n));
}

}  // extern "C"
