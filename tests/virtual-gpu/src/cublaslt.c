/* libcublasLt: one algorithm for everything, which takes 2mnk / VGPU_TFLOPS. */
#include <stdlib.h>
#include <string.h>

#include "vgpu.h"

#define EXECUTION_FAILED 13
#define DESCRIPTOR_BYTES 256 /* more than any of cublasLt.h's opaque structures */
#define LAYOUT_BATCH_COUNT 5 /* CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT */

typedef struct {
    uint64_t type, rows, columns;
    int64_t leading;
    int32_t batches;
} layout;

typedef struct { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;

static int make(void **out) {
    *out = calloc(1, DESCRIPTOR_BYTES);
    return 0;
}

size_t cublasLtGetVersion(void) {
    return CUDART_VERSION * 10;
}

int cublasLtMatrixLayoutCreate(layout **out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    make((void **)out);
    **out = (layout){(uint64_t)type, rows, columns, leading, 1};
    return 0;
}

int cublasLtMatrixLayoutDestroy(layout *l) {
    free(l);
    return 0;
}

int cublasLtMatrixLayoutSetAttribute(layout *l, int attribute, const void *value, size_t size) {
    if (attribute == LAYOUT_BATCH_COUNT && size >= sizeof l->batches)
        memcpy(&l->batches, value, sizeof l->batches);
    return 0;
}

int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    (void)compute, (void)scale;
    return make(out);
}

int cublasLtMatmulDescDestroy(void *description) {
    free(description);
    return 0;
}

int cublasLtMatmulDescSetAttribute(void *description, int attribute, const void *value, size_t size) {
    (void)description, (void)attribute, (void)value, (void)size;
    return 0;
}

int cublasLtMatmulPreferenceCreate(void **out) {
    return make(out);
}

int cublasLtMatmulPreferenceDestroy(void *preference) {
    free(preference);
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t size) {
    (void)preference, (void)attribute, (void)value, (void)size;
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, layout *a, layout *b, layout *c,
                                   layout *d, void *preference, int asked, heuristic *results, int *found) {
    (void)handle, (void)description, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = asked > 0;
    if (asked > 0) {
        memset(results, 0, sizeof *results);
        results->waves = 1;
    }
    return 0;
}

int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int id,
                           void *algorithm) {
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d, (void)id;
    memset(algorithm, 0, sizeof((heuristic *)0)->algorithm);
    return 0;
}

int cublasLtMatmulAlgoCheck(void *handle, void *description, layout *a, layout *b, layout *c, layout *d,
                            void *algorithm, heuristic *result) {
    (void)handle, (void)description, (void)a, (void)b, (void)c, (void)d, (void)algorithm;
    memset(result, 0, sizeof *result);
    return 0;
}

int cublasLtMatmul(void *handle, void *description, void *alpha, void *a, const layout *layout_a, void *b,
                   layout *layout_b, void *beta, void *c, layout *layout_c, void *d, const layout *layout_d,
                   void *algorithm, void *workspace, size_t workspace_size, cudaStream_t stream) {
    (void)handle, (void)description, (void)alpha, (void)a, (void)b, (void)layout_b, (void)beta, (void)c,
        (void)layout_c;
    (void)d, (void)algorithm, (void)workspace, (void)workspace_size;
    /* A is m x k, or k x m where it is transposed. */
    double inner =
        layout_d->rows ? (double)layout_a->rows * (double)layout_a->columns / (double)layout_d->rows : 0;
    double flops = 2 * (double)layout_d->rows * (double)layout_d->columns * inner * layout_d->batches;
    double flops_per_ns = vgpu_number("VGPU_TFLOPS", 400) * 1e3;
    return vgpu_kernel(stream, flops / flops_per_ns, "cublasLt matmul") ? EXECUTION_FAILED : 0;
}
