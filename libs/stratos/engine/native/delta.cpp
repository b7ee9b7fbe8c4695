// The gated delta rule of one layer (Qwen3.5): a short convolution, a recurrence over tokens, a gated norm.
//
// Of a head there is a matrix S [key_dim, value_dim], zeros before the first token.  For each token, in order,
//     S *= exp(-exp(A_log) softplus(a + dt_bias));   S += k (sigmoid(b) (v - k S));   out = q S / sqrt(key_dim)
// where q, k and v are silu(convolution) of the last `kernel` projections, and q and k have length 1.  Chunks of a prompt
// compute the same operations in the same order as token by token, so a token's bits depend on its context alone.
//
// State of a layer, floats: [kernel - 1, channels] projections, the oldest first, then S of each value head.  A row reads
// one slot and writes another: running it again gives the same.
#include <omp.h>
#include <stdint.h>
#include <string.h>

#include "region.h"
#include "simd.h"

static constexpr float LOG2_E = 1.44269504f;
static constexpr float LN_2 = 0.69314718f;
static constexpr float NORM_EPS = 1e-6f;
static constexpr int64_t ROW_FIELDS = 4, SNAPSHOT_FIELDS = 3;
static constexpr int64_t MAX_DIM = 512;  // of families/delta.py

struct DeltaStep {
    const int64_t *rows;       // [num_rows, 4]: first token, tokens, slot read, slot written; -1: zeros, nowhere
    const int64_t *snapshots;  // [num_snapshots, 3]: row, tokens of it after which its state is copied, slot
    float *slots;
    const void *x;  // [tokens, width]: q, k, v, the gate z, b, a
    const float *conv;             // [kernel, channels]
    const float *a_log, *dt_bias;  // [value_heads]
    const float *norm;             // [value_dim]
    void *out;                     // [tokens, value_heads * value_dim]
    float *scratch;                // [threads, key_dim * value_dim]: S of rows that are written nowhere
    int64_t num_rows, num_snapshots, slot_stride, layer_offset, width;
    int64_t key_heads, value_heads, key_dim, value_dim, kernel, dtype, threads;
    float eps;
    float unused;
};

static float exp_of(float x) {
    float lanes[LANES];
    vstore(lanes, vexp2_bounded(vset(x * LOG2_E)));
    return lanes[0];
}

static float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// ln(1 + e^x), above 20 x itself; of a small e^x by its series, else by Newton's method on e^w = 1 + e^x.
static float softplus(float x) {
    if (x > 20.0f) return x;
    float power = exp_of(x);
    if (x < -7.0f) return power * (1.0f - power * (0.5f - power * (1.0f / 3.0f)));
    float y = 1.0f + power;
    int32_t bits;
    memcpy(&bits, &y, 4);
    float w = ((float)bits * (1.0f / 8388608.0f) - 127.0f) * LN_2;
    for (int i = 0; i < 3; i++) w = w - 1.0f + y * exp_of(-w);
    return w;
}

static vec vsilu(vec x) { return vdiv(x, vadd(vset(1.0f), vexp2_bounded(vmul(x, vset(-LOG2_E))))); }

static float dot(const float *a, const float *b, int64_t n) {
    vec sum = vset(0);
    for (int64_t i = 0; i < n; i += LANES) sum = vfma(vload(a + i, (int)(n - i)), vload(b + i, (int)(n - i)), sum);
    return vsum(sum);
}

static void scale(float *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i += LANES) vstore(x + i, vmul(vload(x + i, (int)(n - i)), vset(factor)), (int)(n - i));
}

// One head of one row.
template <class T> struct Head {
    const DeltaStep &s;
    const int64_t *row;
    int64_t head, channels, size;
    const float *before;  // state of the layer, or null for zeros

    float *state(int64_t slot) const { return slot < 0 ? nullptr : s.slots + slot * s.slot_stride + s.layer_offset; }

    const T *projected(int64_t token) const { return (const T *)s.x + (row[0] + token) * s.width; }

    // The first m channels from `channel` on, `back` tokens before `token` of the row.
    vec history(int64_t token, int64_t back, int64_t channel, int m) const {
        int64_t at = token - back;
        if (at >= 0) return vload(projected(at) + channel, m);
        return before ? vload(before + (s.kernel - 1 + at) * channels + channel, m) : vset(0);
    }

    void convolve(int64_t token, int64_t first, int64_t n, float *out) const {
        for (int64_t i = 0; i < n; i += LANES) {
            vec sum = vset(0);
            for (int64_t tap = 0; tap < s.kernel; tap++) {
                vec weights = vload(s.conv + tap * channels + first + i, (int)(n - i));
                sum = vfma(history(token, s.kernel - 1 - tap, first + i, (int)(n - i)), weights, sum);
            }
            vstore(out + i, vsilu(sum), (int)(n - i));
        }
    }

    // The last projections of the row's first `count` tokens.
    void keep_inputs(int64_t count, int64_t first, int64_t n, float *state) const {
        for (int64_t place = 0; place < s.kernel - 1; place++)
            for (int64_t i = first; i < first + n; i += LANES) {
                int m = (int)(first + n - i);
                vstore(state + place * channels + i, history(count, s.kernel - 1 - place, i, m), m);
            }
    }

    // State after the row's first `count` tokens; q and k of a group are kept by its first head.
    void keep(int64_t count, const float *matrix, float *state) const {
        int64_t group = s.value_heads / s.key_heads, keys = s.key_heads * s.key_dim;
        if (head % group == 0) {
            keep_inputs(count, head / group * s.key_dim, s.key_dim, state);
            keep_inputs(count, keys + head / group * s.key_dim, s.key_dim, state);
        }
        keep_inputs(count, 2 * keys + head * s.value_dim, s.value_dim, state);
        float *target = state + (s.kernel - 1) * channels + head * size;
        if (target != matrix) memcpy(target, matrix, size * sizeof(float));
    }

    void update(float *matrix, const float *q, const float *k, const float *v, float decay, float beta, float *out) const {
        float change[MAX_DIM];
        for (int64_t j = 0; j < s.value_dim; j += LANES) {
            int m = (int)(s.value_dim - j);
            vec memory = vset(0);
            for (int64_t i = 0; i < s.key_dim; i++) {
                float *place = matrix + i * s.value_dim + j;
                vec faded = vmul(vload(place, m), vset(decay));
                vstore(place, faded, m);
                memory = vfma(faded, vset(k[i]), memory);
            }
            vstore(change + j, vmul(vsub(vload(v + j, m), memory), vset(beta)), m);
            vec sum = vset(0), wanted = vload(change + j, m);
            for (int64_t i = 0; i < s.key_dim; i++) {
                float *place = matrix + i * s.value_dim + j;
                vec changed = vfma(vset(k[i]), wanted, vload(place, m));
                vstore(place, changed, m);
                sum = vfma(changed, vset(q[i]), sum);
            }
            vstore(out + j, sum, m);
        }
    }

    void store(int64_t token, const float *result) const {
        int64_t n = s.value_dim;
        const T *gate = projected(token) + channels + head * n;
        T *out = (T *)s.out + (row[0] + token) * s.value_heads * n + head * n;
        vec factor = vset(1.0f / __builtin_sqrtf(dot(result, result, n) / (float)n + s.eps));
        for (int64_t i = 0; i < n; i += LANES) {
            int m = (int)(n - i);
            vec normed = vmul(vmul(vload(result + i, m), factor), vload(s.norm + i, m));
            vstore(out + i, vmul(normed, vsilu(vload(gate + i, m))), m);
        }
    }

    void token(int64_t index, float *matrix) const {
        float q[MAX_DIM], k[MAX_DIM], v[MAX_DIM], result[MAX_DIM];
        int64_t keys = s.key_heads * s.key_dim, first = head / (s.value_heads / s.key_heads) * s.key_dim;
        convolve(index, first, s.key_dim, q);
        convolve(index, keys + first, s.key_dim, k);
        convolve(index, 2 * keys + head * s.value_dim, s.value_dim, v);
        scale(q, s.key_dim, 1.0f / __builtin_sqrtf((dot(q, q, s.key_dim) + NORM_EPS) * (float)s.key_dim));
        scale(k, s.key_dim, 1.0f / __builtin_sqrtf(dot(k, k, s.key_dim) + NORM_EPS));
        const T *tail = projected(index) + channels + s.value_heads * s.value_dim;
        float beta = sigmoid(to_float(tail[head])), a = to_float(tail[s.value_heads + head]);
        float decay = exp_of(-exp_of(s.a_log[head]) * softplus(a + s.dt_bias[head]));
        update(matrix, q, k, v, decay, beta, result);
        store(index, result);
    }

    void run(int64_t index, float *scratch) const {
        float *after = state(row[3]);
        float *matrix = after ? after + (s.kernel - 1) * channels + head * size : scratch;
        if (before)
            memcpy(matrix, before + (s.kernel - 1) * channels + head * size, size * sizeof(float));
        else
            memset(matrix, 0, size * sizeof(float));
        for (int64_t t = 0; t < row[1]; t++) {
            token(t, matrix);
            for (int64_t i = 0; i < s.num_snapshots; i++) {
                const int64_t *wanted = s.snapshots + i * SNAPSHOT_FIELDS;
                if (wanted[0] == index && wanted[1] == t + 1) keep(t + 1, matrix, state(wanted[2]));
            }
        }
        if (after) keep(row[1], matrix, after);
    }
};

template <class T> static void delta(const DeltaStep &s, int thread) {
    int64_t size = s.key_dim * s.value_dim;
    int64_t channels = 2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim;
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < s.num_rows * s.value_heads; item++) {
        const int64_t *row = s.rows + item / s.value_heads * ROW_FIELDS;
        Head<T> head = {s, row, item % s.value_heads, channels, size, nullptr};
        head.before = head.state(row[2]);
        head.run(item / s.value_heads, s.scratch + thread * size);
    }
}

extern "C" {
int64_t stratos_delta_bytes(void) { return sizeof(DeltaStep); }

void stratos_delta(const DeltaStep *s) {
#pragma omp parallel num_threads((int)s->threads)
    DISPATCH(s->dtype, delta<T>(*s, omp_get_thread_num()));
}

// x [n] *= sigmoid(gate).
void stratos_sigmoid_gate(int dtype, void *x, const void *gate, int64_t n) {
    DISPATCH(dtype, {
        for (int64_t i = 0; i < n; i += LANES) {
            int m = (int)(n - i);
            vec share = vadd(vset(1.0f), vexp2_bounded(vmul(vload((const T *)gate + i, m), vset(-LOG2_E))));
            vstore((T *)x + i, vdiv(vload((const T *)x + i, m), share), m);
        }
    });
}

}  // extern "C"
