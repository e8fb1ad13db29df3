/* A test is a function; a rule is a line of it. The first rule that does not hold ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "cuda_runtime_api.h"

#define GIVES(expected, call)                                                                                \
    do {                                                                                                     \
        cudaError_t given = (call);                                                                          \
        if (given != (expected)) {                                                                           \
            fprintf(stderr, "%s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(given),   \
                    cudaGetErrorName(expected));                                                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define OK(call) GIVES(cudaSuccess, call)
#define HOLDS(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                    \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define NEAR(expected, value) /* within half a percent and 200 us */                                         \
    do {                                                                                                     \
        double is = (value), should = (expected), off = is > should ? is - should : should - is;             \
        if (off > should * 0.005 + 0.2) {                                                                    \
            fprintf(stderr, "%s:%d: %s is %.3f, not %.3f\n", __FILE__, __LINE__, #value, is, should);        \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* A kernel of that many ms: by its threads, at 60,000 a microsecond. */
static inline cudaError_t work(cudaStream_t stream, double ms) {
    dim3 grid = {(unsigned)(ms * 60000), 1, 1}, block = {1000, 1, 1};
    return cudaLaunchKernel((const void *)work, grid, block, NULL, 0, stream);
}

static inline cudaStream_t non_blocking(void) {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static inline cudaStream_t blocking(void) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    return stream;
}

static inline cudaEvent_t event(void) {
    cudaEvent_t made;
    OK(cudaEventCreate(&made));
    return made;
}

static inline cudaEvent_t recorded(cudaStream_t stream) {
    cudaEvent_t made = event();
    OK(cudaEventRecord(made, stream));
    return made;
}

static inline double ms_between(cudaEvent_t from, cudaEvent_t to) {
    float ms;
    OK(cudaEventElapsedTime(&ms, from, to));
    return ms;
}

#endif
