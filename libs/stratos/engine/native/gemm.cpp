// C interface of gemm.h.
#include "gemm.h"

#include "region.h"

static constexpr int64_t SERIAL_PRODUCTS = 1 << 17;  // some microseconds: below, a second thread saves less than it can cost

void region_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float) {
    if (!dtype)
        multiply_rows(l, (const float *)x, (float *)out, rows);
    else if (is_float)
        multiply_rows(l, (const bf16_t *)x, (float *)out, rows);
    else
        multiply_rows(l, (const bf16_t *)x, (bf16_t *)out, rows);
}

extern "C" {

int64_t stratos_packed_bytes(int dtype, int64_t n, int64_t k) {
    return dtype ? packed_bytes<bf16_t>(n, k) : packed_bytes<float>(n, k);
}

void stratos_pack(int dtype, const void *weight, void *out, int64_t n, int64_t k, int threads) {
    if (dtype)
        pack((const bf16_t *)weight, (bf16_t *)out, n, k, threads);
    else
        pack((const float *)weight, (float *)out, n, k, threads);
}

// out is float where is_float, else of the compute type.
void stratos_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, int is_float, int threads) {
    if (l->n * l->k * rows < SERIAL_PRODUCTS) threads = 1;
#pragma omp parallel num_threads(threads)
    region_linear(dtype, l, x, out, rows, is_float);
}

}  // extern "C"
