/* Copies and memsets. Up to VGPU_COPIED_BYTES they are made; longer ones only take their time. */
#include "engine.h"

#define COPY_START_NS 2000

static double copy_ns(size_t size, int is_within_devices) {
    double start = settings.kernel_ns < COPY_START_NS ? settings.kernel_ns : COPY_START_NS;
    return start + (double)size / (is_within_devices ? settings.device_copy_gbs : settings.copy_gbs);
}

/* "For transfers from device memory to pageable host memory, the function will return only once the copy has
 * completed"; "from pageable host memory to device memory [...] once the pageable buffer has been copied to
 * the staging memory" (CUDA Runtime API, "API synchronization behavior"). */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t handle) {
    (void)kind;
    enum cudaMemoryType to_type = memory_type(to), from_type = memory_type(from);
    int is_within_devices = to_type == cudaMemoryTypeDevice && from_type == cudaMemoryTypeDevice;
    operation op = {.kind = OP_COPY, .to = to, .from = from, .size = size};
    op.duration = copy_ns(size, is_within_devices);
    op.takes_snapshot = from_type == cudaMemoryTypeUnregistered;
    cudaError_t error = enqueue(handle, &op);
    if (error || to_type != cudaMemoryTypeUnregistered || vgpu_is_capturing(handle)) return error;
    count(BLOCKING_COPY);
    return cudaStreamSynchronize(handle);
}

/* "Synchronous APIs, such as cudaMemcpy(), enqueue work to the legacy stream and synchronize it before
 * returning"
 * ([guide] in capture.c). */
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    count(BLOCKING_COPY);
    cudaError_t error = cudaMemcpyAsync(to, from, size, kind, cudaStreamLegacy);
    return error ? error : cudaStreamSynchronize(cudaStreamLegacy);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                cudaStream_t handle) {
    (void)to_device, (void)from_device;
    return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, handle);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t handle) {
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < height && !error; row++)
        error = cudaMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width,
                                kind, handle);
    return error;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t handle) {
    operation op = {.kind = OP_SET, .to = at, .value = value, .size = size, .duration = copy_ns(size, 1)};
    return enqueue(handle, &op);
}

cudaError_t cudaMemset(void *at, int value, size_t size) {
    return cudaMemsetAsync(at, value, size, cudaStreamLegacy);
}

/* Variables of device code: no kernel computes with them. */
static char symbol_memory[1 << 16];

cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
    (void)symbol;
    *out = symbol_memory;
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset,
                               enum cudaMemcpyKind kind) {
    (void)symbol, (void)from, (void)size, (void)offset, (void)kind;
    return cudaSuccess;
}
