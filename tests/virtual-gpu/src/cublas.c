/* libcublas: a product of matrices takes 2mnk / VGPU_TFLOPS. What is not here is a stub that succeeds and
 * takes nothing. Calls take more arguments than are named here: C's calling convention lets the rest be. */
#include <stdlib.h>

#include "vgpu.h"

#define EXECUTION_FAILED 13 /* CUBLAS_STATUS_EXECUTION_FAILED */

typedef struct {
    cudaStream_t stream;
    int math_mode, pointer_mode;
} handle;

static int multiply(const handle *h, double m, double n, double k, double batches) {
    double flops_per_ns = vgpu_number("VGPU_TFLOPS", 400) * 1e3;
    return vgpu_kernel(h->stream, 2 * m * n * k * batches / flops_per_ns, "cublas gemm") ? EXECUTION_FAILED
                                                                                         : 0;
}

int cublasCreate_v2(handle **h) {
    *h = calloc(1, sizeof **h);
    return 0;
}

int cublasDestroy_v2(handle *h) {
    free(h);
    return 0;
}

int cublasSetStream_v2(handle *h, cudaStream_t stream) {
    h->stream = stream;
    return 0;
}

int cublasGetStream_v2(handle *h, cudaStream_t *stream) {
    *stream = h->stream;
    return 0;
}

int cublasSetMathMode(handle *h, int mode) {
    h->math_mode = mode;
    return 0;
}

int cublasGetMathMode(handle *h, int *mode) {
    *mode = h->math_mode;
    return 0;
}

int cublasSetPointerMode_v2(handle *h, int mode) {
    h->pointer_mode = mode;
    return 0;
}

int cublasGetPointerMode_v2(handle *h, int *mode) {
    *mode = h->pointer_mode;
    return 0;
}

#define GEMM(name)                                                                                           \
    int name(handle *h, int trans_a, int trans_b, int m, int n, int k) {                                     \
        (void)trans_a, (void)trans_b;                                                                        \
        return multiply(h, m, n, k, 1);                                                                      \
    }
GEMM(cublasSgemm_v2)
GEMM(cublasDgemm_v2)
GEMM(cublasCgemm_v2)
GEMM(cublasZgemm_v2)
GEMM(cublasGemmEx)
GEMM(cublasSgemmEx)

#define GEMV(name)                                                                                           \
    int name(handle *h, int trans, int m, int n) {                                                           \
        (void)trans;                                                                                         \
        return multiply(h, m, n, 1, 1);                                                                      \
    }
GEMV(cublasSgemv_v2)
GEMV(cublasDgemv_v2)
GEMV(cublasCgemv_v2)
GEMV(cublasZgemv_v2)

/* The number of batches comes last, after three matrices each with a leading dimension and a stride. */
#define STRIDED(name)                                                                                        \
    int name(handle *h, int trans_a, int trans_b, int m, int n, int k, void *alpha, void *a, int ld_a,       \
             long long step_a, void *b, int ld_b, long long step_b, void *beta, void *c, int ld_c,           \
             long long step_c, int batches) {                                                                \
        (void)trans_a, (void)trans_b, (void)alpha, (void)a, (void)ld_a, (void)step_a, (void)b, (void)ld_b;   \
        (void)step_b, (void)beta, (void)c, (void)ld_c, (void)step_c;                                         \
        return multiply(h, m, n, k, batches);                                                                \
    }
STRIDED(cublasSgemmStridedBatched)
STRIDED(cublasDgemmStridedBatched)
STRIDED(cublasCgemmStridedBatched)
STRIDED(cublasZgemmStridedBatched)

int cublasGemmStridedBatchedEx(handle *h, int trans_a, int trans_b, int m, int n, int k, void *alpha, void *a,
                               int type_a, int ld_a, long long step_a, void *b, int type_b, int ld_b,
                               long long step_b, void *beta, void *c, int type_c, int ld_c, long long step_c,
                               int batches) {
    (void)trans_a, (void)trans_b, (void)alpha, (void)a, (void)type_a, (void)ld_a, (void)step_a, (void)b,
        (void)type_b;
    (void)ld_b, (void)step_b, (void)beta, (void)c, (void)type_c, (void)ld_c, (void)step_c;
    return multiply(h, m, n, k, batches);
}

#define DOT(name)                                                                                            \
    int name(handle *h) {                                                                                    \
        return multiply(h, 1, 1, 1, 1);                                                                      \
    }
DOT(cublasSdot_v2)
DOT(cublasDdot_v2)
DOT(cublasDotEx)
