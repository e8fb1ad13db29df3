/* Devices: what an H100 says of itself, as far as PyTorch asks. */
#include <stdio.h>
#include <string.h>

#include "engine.h"

static const int H100[][2] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 0x7fffffff},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrTotalConstantMemory, 65536},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrClockRate, 1980000},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrMemoryClockRate, 2619000},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
};

static int bus_of(int device) {
    return 0x10 + device;
}

static int is_device(int device) {
    return device >= 0 && device < settings.devices;
}

/* The first call that every program makes: NVIDIA's runtime has loaded libcuda after it, which PyTorch 2.7
 * looks for among the libraries that are loaded. */
cudaError_t cudaGetDeviceCount(int *count_out) {
    driver_library();
    *count_out = settings.devices;
    return settings.devices ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

/* "This function will immediately initialize the runtime state on the primary context" (CUDA Runtime API,
 * cudaSetDevice). */
cudaError_t cudaSetDevice(int device) {
    if (!is_device(device)) return failed(cudaErrorInvalidDevice);
    current_device = device;
    context_made(device);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (!is_device(device)) return failed(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrPciBusId ? bus_of(device) : 0;
    for (size_t i = 0; i < sizeof H100 / sizeof *H100; i++)
        if (H100[i][0] == (int)attribute) *value = H100[i][1];
    return cudaSuccess;
}

static int attribute(enum cudaDeviceAttr which) {
    int value;
    cudaDeviceGetAttribute(&value, which, 0);
    return value;
}

static void limits(struct cudaDeviceProp *p) {
    p->warpSize = attribute(cudaDevAttrWarpSize);
    p->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    p->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    p->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
    for (int axis = 0; axis < 3; axis++) {
        p->maxThreadsDim[axis] = attribute(cudaDevAttrMaxBlockDimX + axis);
        p->maxGridSize[axis] = attribute(cudaDevAttrMaxGridDimX + axis);
    }
    p->regsPerBlock = p->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerBlock);
    p->sharedMemPerBlock = (size_t)attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    p->sharedMemPerBlockOptin = (size_t)attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    p->sharedMemPerMultiprocessor = (size_t)attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    p->reservedSharedMemPerBlock = (size_t)attribute(cudaDevAttrReservedSharedMemoryPerBlock);
    p->totalConstMem = (size_t)attribute(cudaDevAttrTotalConstantMemory);
    p->textureAlignment = (size_t)attribute(cudaDevAttrTextureAlignment);
    p->memPitch = 0x7fffffff;
    p->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
    p->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
    p->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    p->asyncEngineCount = attribute(cudaDevAttrAsyncEngineCount);
#if CUDART_VERSION < 13000 /* CUDA 13 tells the clocks as attributes only */
    p->clockRate = attribute(cudaDevAttrClockRate);
    p->memoryClockRate = attribute(cudaDevAttrMemoryClockRate);
#endif
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    if (!is_device(device)) return failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Virtual H100 80GB");
    for (int i = 0; i < 15; i++)
        p->uuid.bytes[i] = (char)(0x70 + i);
    p->uuid.bytes[15] = (char)device;
    p->totalGlobalMem = settings.memory_bytes;
    p->major = attribute(cudaDevAttrComputeCapabilityMajor);
    p->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    p->pciBusID = bus_of(device);
    limits(p);
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
    p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->managedMemory = p->computePreemptionSupported = p->canUseHostPointerForRegisteredMem = 1;
    p->cooperativeLaunch = p->hostRegisterSupported = p->clusterLaunch = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    snprintf(id, (size_t)size, "0000:%02x:00.0", bus_of(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)peer, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaProfilerStart(void) {
    return cudaSuccess;
}

cudaError_t cudaProfilerStop(void) {
    return cudaSuccess;
}
