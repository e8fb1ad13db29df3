/* Memory: pages that are never touched cost nothing, so a device of 80 GiB fits everywhere. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine.h"

#define PAGE 4096UL

typedef struct {
    char *at;
    size_t size;
    enum cudaMemoryType type;
    int device;
} block;

static block *blocks; /* by address */
static size_t block_count, block_room;
static size_t used[MAX_DEVICES];

/* How many blocks begin at or before `at`. */
static size_t blocks_until(const void *at) {
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].at <= (const char *)at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static block *block_of(const void *at) {
    size_t until = blocks_until(at);
    if (!until) return NULL;
    block *found = &blocks[until - 1];
    return (const char *)at < found->at + found->size ? found : NULL;
}

static void block_add(void *at, size_t size, enum cudaMemoryType type) {
    if (block_count == block_room) {
        block_room = block_room ? block_room * 2 : 256;
        blocks = realloc(blocks, block_room * sizeof *blocks);
    }
    size_t index = blocks_until(at);
    memmove(blocks + index + 1, blocks + index, (block_count - index) * sizeof *blocks);
    blocks[index] = (block){at, size, type, current_device};
    block_count++;
}

static void block_remove(const block *gone) {
    size_t index = (size_t)(gone - blocks);
    memmove(blocks + index, blocks + index + 1, (block_count - index - 1) * sizeof *blocks);
    block_count--;
}

/* "During stream capture, some actions, such as a call to cudaMalloc, may be unsafe" (CUDA Runtime API,
 * cudaThreadExchangeStreamCaptureMode). */
static cudaError_t allocate(void **out, size_t size, enum cudaMemoryType type) {
    int is_device = type == cudaMemoryTypeDevice;
    *out = NULL;
    size = (size + PAGE - 1) & ~(PAGE - 1);
    if (!size) return cudaSuccess;
    vgpu_lock();
    context_made(current_device);
    cudaError_t error = unsafe_call();
    if (!error && is_device && used[current_device] + size > settings.memory_bytes)
        error = cudaErrorMemoryAllocation;
    if (!error) {
        void *at =
            mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) error = cudaErrorMemoryAllocation;
        if (!error) *out = at;
    }
    if (!error) {
        block_add(*out, size, type);
        if (is_device) used[current_device] += size;
    }
    vgpu_unlock();
    return failed(error);
}

/* A free waits for the device, as cudaFree does. */
static cudaError_t release(void *at) {
    if (!at) return cudaSuccess;
    vgpu_lock();
    cudaError_t error = unsafe_call();
    block *found = block_of(at);
    if (!error && (!found || found->at != at)) error = cudaErrorInvalidValue;
    if (error) {
        vgpu_unlock();
        return failed(error);
    }
    block gone = *found;
    block_remove(found);
    if (gone.type == cudaMemoryTypeDevice) used[gone.device] -= gone.size;
    for (stream *s = all_streams; s; s = s->next) {
        if (s->device != gone.device) continue;
        wait_for_stream(s);
        vgpu_lock();
    }
    munmap(gone.at, gone.size);
    vgpu_unlock();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t size) {
    return allocate(out, size, cudaMemoryTypeDevice);
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags) {
    (void)flags;
    return allocate(out, size, cudaMemoryTypeDevice);
}

cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t s) {
    (void)s;
    return allocate(out, size, cudaMemoryTypeDevice);
}

cudaError_t cudaMallocHost(void **out, size_t size) {
    return allocate(out, size, cudaMemoryTypeHost);
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
    (void)flags;
    return allocate(out, size, cudaMemoryTypeHost);
}

cudaError_t cudaFree(void *at) {
    return release(at);
}

cudaError_t cudaFreeHost(void *at) {
    return release(at);
}

cudaError_t cudaFreeAsync(void *at, cudaStream_t s) {
    (void)s;
    return release(at);
}

cudaError_t cudaHostRegister(void *at, size_t size, unsigned flags) {
    (void)flags;
    vgpu_lock();
    block_add(at, size, cudaMemoryTypeHost);
    vgpu_unlock();
    return cudaSuccess;
}

/* One address for both: cudaDevAttrUnifiedAddressing. */
cudaError_t cudaHostGetDevicePointer(void **out, void *at, unsigned flags) {
    (void)flags;
    *out = at;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at) {
    vgpu_lock();
    block *found = block_of(at);
    int is_there = found && found->at == at;
    if (is_there) block_remove(found);
    vgpu_unlock();
    return failed(is_there ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    context_made(current_device);
    vgpu_lock();
    *total = settings.memory_bytes;
    *free_bytes = settings.memory_bytes - used[current_device];
    vgpu_unlock();
    return cudaSuccess;
}

enum cudaMemoryType memory_type(const void *at) {
    vgpu_lock();
    block *found = block_of(at);
    enum cudaMemoryType type = found ? found->type : cudaMemoryTypeUnregistered;
    vgpu_unlock();
    return type;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at) {
    memset(attributes, 0, sizeof *attributes);
    vgpu_lock();
    const block *found = block_of(at);
    attributes->type = found ? found->type : cudaMemoryTypeUnregistered;
    attributes->device = found ? found->device : -1;
    if (found) attributes->devicePointer = (void *)(uintptr_t)at;
    if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = (void *)(uintptr_t)at;
    vgpu_unlock();
    return cudaSuccess;
}
