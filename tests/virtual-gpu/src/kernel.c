/* Kernels: registered under their names, launched, timed by their threads. They compute nothing. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

typedef struct {
    const void *function;
    const char *name;
} registered;

static registered *table; /* open addressing */
static size_t table_room, table_count;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t place_of(const void *function) {
    size_t at = ((uintptr_t)function >> 4) * 0x9E3779B97F4A7C15ULL >> 20 & (table_room - 1);
    while (table[at].function && table[at].function != function)
        at = (at + 1) & (table_room - 1);
    return at;
}

static void register_kernel(const void *function, const char *name) {
    if (table_count * 2 >= table_room) {
        registered *old = table;
        size_t old_room = table_room;
        table_room = old_room ? old_room * 2 : 1 << 15;
        table = calloc(table_room, sizeof *table);
        for (size_t i = 0; i < old_room; i++)
            if (old[i].function) table[place_of(old[i].function)] = old[i];
        free(old);
    }
    registered *place = &table[place_of(function)];
    if (!place->function) table_count++;
    *place = (registered){function, name};
}

static const char *name_of(const void *function) {
    return table_room ? table[place_of(function)].name : NULL;
}

/* What nvcc's host code calls when a library is loaded (crt/host_runtime.h declares it for C++). */
void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

/* Called by host code of CUDA 12 before it asks for a kernel that is loaded lazily. */
char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}

void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int external,
                       size_t size, int constant, int global) {
    (void)handle, (void)variable, (void)address, (void)name, (void)external, (void)size, (void)constant,
        (void)global;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *name,
                            int limit, uint3 *thread, uint3 *block, dim3 *block_size, dim3 *grid_size,
                            int *warp_size) {
    (void)handle, (void)device_function, (void)limit, (void)thread, (void)block;
    (void)block_size, (void)grid_size, (void)warp_size;
    pthread_mutex_lock(&table_lock);
    register_kernel(function, name);
    pthread_mutex_unlock(&table_lock);
}

static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *s) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = s;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *s) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(cudaStream_t *)s = pushed.stream;
    return cudaSuccess;
}

static double volume(dim3 size) {
    return (double)size.x * size.y * size.z;
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **arguments, cudaStream_t s) {
    const char *name = name_of(function);
    double duration = volume(grid) * volume(block) / settings.threads_per_ns;
    if (name && strstr(name, "spin_kernel")) /* torch.cuda._sleep(cycles) */
        duration = (double)*(int64_t *)arguments[0] / clock_ghz;
    return vgpu_kernel(s, duration, name);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t s) {
    (void)shared;
    return launch(function, grid, block, arguments, s);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                        size_t shared, cudaStream_t s) {
    (void)shared;
    return launch(function, grid, block, arguments, s);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    return launch(function, config->gridDim, config->blockDim, arguments, config->stream);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)(uintptr_t)function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t s) {
    (void)shared;
    return launch(kernel, grid, block, arguments, s);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = 232448;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                   int block_size, size_t shared,
                                                                   unsigned flags) {
    (void)function, (void)shared, (void)flags;
    int fit = block_size > 0 ? 2048 / block_size : 1;
    *blocks = fit < 1 ? 1 : fit > 32 ? 32 : fit;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                          size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared, 0);
}
