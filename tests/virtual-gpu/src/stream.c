/* Streams, as the runtime's functions. */
#include <stdlib.h>

#include "engine.h"

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    vgpu_lock();
    *out = stream_new(flags, priority);
    vgpu_unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out) {
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

/* It stays: "in case the device is still doing work in the stream when cudaStreamDestroy() is called, the
 * function will return immediately and the resources will be released once the device has completed all work"
 * (CUDA Runtime API). */
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    vgpu_lock();
    *priority = stream_of(handle)->priority;
    vgpu_unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    count(STREAM_SYNCHRONIZE);
    vgpu_lock();
    stream *s = stream_of(handle);
    cudaError_t error = synchronizing_use(s);
    if (error) {
        vgpu_unlock();
        return failed(error);
    }
    if (s->is_legacy) order_legacy(s);
    wait_for_stream(s);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    count(STREAM_QUERY);
    vgpu_lock();
    stream *s = stream_of(handle);
    cudaError_t error = synchronizing_use(s);
    if (!error && s->is_legacy) order_legacy(s);
    if (!error && (s->head || s->cursor > vgpu_now())) error = cudaErrorNotReady;
    vgpu_unlock();
    return failed(error);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void *argument) {
    operation op = {.kind = OP_HOST, .fn = fn, .argument = argument};
    return enqueue(handle, &op);
}

typedef struct {
    cudaStreamCallback_t fn;
    cudaStream_t stream;
    void *argument;
} callback;

static void call(void *given) {
    callback *c = given;
    c->fn(c->stream, cudaSuccess, c->argument);
    free(c);
}

/* "This function is not supported with cudaStreamBeginCapture and cudaStreamEndCapture, unlike
 * cudaLaunchHostFunc" (CUDA Runtime API, cudaStreamAddCallback). */
cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t fn, void *argument,
                                  unsigned flags) {
    (void)flags;
    vgpu_lock();
    capture *capturing = stream_of(handle)->capture;
    if (capturing) capture_invalidate(capturing);
    vgpu_unlock();
    if (capturing) return failed(cudaErrorStreamCaptureUnsupported);
    callback *c = malloc(sizeof *c);
    *c = (callback){fn, handle, argument};
    return cudaLaunchHostFunc(handle, call, c);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

/* "It is also invalid to query the execution status of or synchronize a broader handle which encompasses an
 * active stream capture, such as a device or context handle when any associated stream is in capture mode"
 * ([guide] in capture.c). */
static cudaError_t device_synchronizing_use(void) {
    cudaError_t error = unsafe_call();
    for (stream *s = all_streams; s; s = s->next) {
        if (!s->capture || s->device != current_device) continue;
        capture_invalidate(s->capture);
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

cudaError_t cudaDeviceSynchronize(void) {
    count(DEVICE_SYNCHRONIZE);
    vgpu_lock();
    cudaError_t error = device_synchronizing_use();
    for (stream *s = all_streams; s && !error; s = s->next) {
        if (s->device != current_device) continue;
        wait_for_stream(s);
        vgpu_lock();
    }
    vgpu_unlock();
    return failed(error);
}
