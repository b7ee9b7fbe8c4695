// C interface of gemm.h.
#include "gemm.h"

#include "region.h"

static constexpr int64_t SERIAL_PRODUCTS = 1 << 17;  // some microseconds: below, a second thread saves less than it can cost

void region_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float) {
    if (is_float)
        DISPATCH(dtype, multiply_rows(l, (const T *)x, (float *)out, rows));
    else
        DISPATCH(dtype, multiply_rows(l, (const T *)x, (T *)out, rows));
}

extern "C" {

int64_t stratos_packed_bytes(int dtype, int64_t n, int64_t k) {
    DISPATCH(dtype, return packed_bytes<T>(n, k));
}

void stratos_pack(int dtype, const void *weight, void *out, int64_t n, int64_t k, int threads) {
    DISPATCH(dtype, pack((const T *)weight, (T *)out, n, k, threads));
}

// out is float where is_float, else of the compute type.
void stratos_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, int is_float, int threads) {
    if (l->n * l->k * rows < SERIAL_PRODUCTS) threads = 1;
#pragma omp parallel num_threads(threads)
    region_linear(dtype, l, x, out, rows, is_float);
}

}  // extern "C"
