/* libcuda.so.1: what PyTorch asks the driver for. A context is its device's number. */
#define _GNU_SOURCE
#include <string.h>

#include "vgpu.h"

#define CONTEXTS 16
static char contexts[CONTEXTS];

static void *context_of(int device) {
    return &contexts[device & (CONTEXTS - 1)];
}

int cuInit(unsigned flags) {
    (void)flags;
    return 0;
}

int cuDriverGetVersion(int *version) {
    return cudaDriverGetVersion(version);
}

int cuDeviceGetCount(int *count) {
    return cudaGetDeviceCount(count);
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
    struct cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    if (size > 0) *name = 0, strncat(name, properties.name, (size_t)size - 1);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}

int cuDeviceGetUuid(void *uuid, int device) {
    struct cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    memcpy(uuid, &properties.uuid, 16);
    return 0;
}

int cuDeviceGetUuid_v2(void *uuid, int device) {
    return cuDeviceGetUuid(uuid, device);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = vgpu_has_context(device);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = context_of(device);
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return 0;
}

int cuCtxGetCurrent(void **context) {
    int device;
    cudaGetDevice(&device);
    *context = vgpu_has_context(device) ? context_of(device) : NULL;
    return 0;
}

int cuCtxSetCurrent(void *context) {
    if (context >= (void *)contexts && context < (void *)(contexts + CONTEXTS))
        return cudaSetDevice((int)((char *)context - contexts));
    return 0;
}

int cuCtxPushCurrent(void *context) {
    return cuCtxSetCurrent(context);
}

int cuCtxPopCurrent(void **context) {
    return cuCtxGetCurrent(context);
}

int cuCtxGetDevice(int *device) {
    return cudaGetDevice(device);
}

int cuStreamGetCtx(cudaStream_t stream, void **context) {
    *context = context_of(vgpu_device_of(stream));
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    *text = cudaGetErrorString((cudaError_t)error);
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    *name = cudaGetErrorName((cudaError_t)error);
    return 0;
}

int cuMemsetD32Async(void *at, unsigned value, size_t count, cudaStream_t stream) {
    return cudaMemsetAsync(at, (int)value, count * 4, stream);
}

int cuStreamWriteValue32(cudaStream_t stream, void *at, unsigned value, unsigned flags) {
    (void)flags;
    return cudaMemsetAsync(at, (int)value, 4, stream);
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, cudaStream_t stream, void **arguments,
                   void **extra) {
    (void)function, (void)shared, (void)arguments, (void)extra;
    double threads = (double)grid_x * grid_y * grid_z * block_x * block_y * block_z;
    return vgpu_kernel(stream, threads / 60, "cuLaunchKernel");
}

int cuMemGetAddressRange_v2(void **base, size_t *size, void *at) {
    (void)size;
    if (base) *base = at;
    return cudaErrorNotSupported;
}

enum {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_MEMORY_TYPE = 2,
    ATTRIBUTE_DEVICE_ORDINAL = 9,
    MEMORY_HOST = 1,
    MEMORY_DEVICE = 2
};

int cuPointerGetAttribute(void *value, int attribute, void *at) {
    struct cudaPointerAttributes of;
    cudaPointerGetAttributes(&of, at);
    switch (attribute) {
    case ATTRIBUTE_MEMORY_TYPE:
        *(int *)value = of.type == cudaMemoryTypeDevice ? MEMORY_DEVICE : MEMORY_HOST;
        break;
    case ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = of.device;
        break;
    case ATTRIBUTE_CONTEXT:
        *(void **)value = context_of(of.device);
        break;
    default:
        return cudaErrorNotSupported;
    }
    return of.type == cudaMemoryTypeUnregistered ? cudaErrorInvalidValue : 0;
}
