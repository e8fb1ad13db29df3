/* Stream capture, and what is refused while it runs. The rules are NVIDIA's:
 *
 * [guide] CUDA C++ Programming Guide, "CUDA Graphs", "Creating a Graph Using Stream Capture": "Cross-stream
 * Dependencies and Events", "Prohibited and Unhandled Operations", "Invalidation". [begin], [end], [status],
 * [mode] CUDA Runtime API: cudaStreamBeginCapture, cudaStreamEndCapture, cudaStreamIsCapturing,
 *         cudaThreadExchangeStreamCaptureMode.
 *
 * ../rules holds a test for each. Which error of several a call gives is from the errors' own descriptions in
 * driver_types.h; it was not compared with a driver. */
#include <stdlib.h>

#include "engine.h"

capture *all_captures;
static unsigned long long captures_made;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* "When an invalid operation is attempted during stream capture, any associated capture graphs are
 * invalidated" [guide]. */
void capture_invalidate(capture *c) {
    if (!c->is_invalid) count(INVALIDATED_CAPTURE);
    c->is_invalid = 1;
}

/* A call that may be unsafe, such as cudaMalloc or a query of an event. Prohibited [mode]:
 * - in a thread of mode global: while it captures itself, unless relaxed, or any other captures in mode
 * global;
 * - in a thread of mode thread-local: while it captures itself, unless relaxed;
 * - in a thread of mode relaxed: never. */
cudaError_t unsafe_call(void) {
    cudaError_t error = cudaSuccess;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return error;
    for (capture *c = all_captures; c; c = c->next) {
        int is_own = pthread_equal(c->thread, pthread_self()) && c->mode != cudaStreamCaptureModeRelaxed;
        int is_global = thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal;
        if (!is_own && !is_global) continue;
        capture_invalidate(c);
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

/* The capture that a blocking stream of this device takes part in. */
static capture *blocking_capture(int device) {
    for (stream *s = all_streams; s; s = s->next)
        if (s->capture && s->is_blocking && s->device == device) return s->capture;
    return NULL;
}

/* "When any stream in the same context is being captured, and it was not created with cudaStreamNonBlocking,
 * any attempted use of the legacy stream is invalid" [guide]. */
cudaError_t legacy_use(const stream *s) {
    capture *c = s->is_legacy ? blocking_capture(s->device) : NULL;
    if (!c) return cudaSuccess;
    capture_invalidate(c);
    return cudaErrorStreamCaptureImplicit;
}

/* "It is invalid to synchronize or query the execution status of a stream which is being captured" [guide].
 */
cudaError_t synchronizing_use(stream *s) {
    if (s->capture) {
        capture_invalidate(s->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    cudaError_t error = legacy_use(s);
    return error ? error : unsafe_call();
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

/* "Capture may not be initiated if stream is cudaStreamLegacy"; "it may only be initiated if the stream is
 * not already in capture mode" [begin]. */
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    vgpu_lock();
    stream *s = stream_of(handle);
    if (s->is_legacy || s->capture) {
        cudaError_t error = s->is_legacy ? cudaErrorStreamCaptureUnsupported : cudaErrorIllegalState;
        if (s->capture) capture_invalidate(s->capture);
        vgpu_unlock();
        return failed(error);
    }
    capture *c = calloc(1, sizeof *c);
    c->origin = s;
    c->mode = mode;
    c->thread = pthread_self();
    c->id = ++captures_made;
    c->graph = calloc(1, sizeof *c->graph);
    c->graph->branches = 1;
    c->next = all_captures;
    all_captures = c;
    s->capture = c;
    s->branch = 0;
    count(CAPTURE);
    vgpu_unlock();
    return cudaSuccess;
}

/* Whether a capture may end here and now [end]; it goes on where not. */
static cudaError_t may_end(const stream *s) {
    const capture *c = s->capture;
    if (!c) return cudaErrorIllegalState;
    if (c->origin != s) return cudaErrorStreamCaptureUnmatched;
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        return cudaErrorStreamCaptureWrongThread;
    return cudaSuccess;
}

static void take_out(capture *c) {
    for (stream *s = all_streams; s; s = s->next)
        if (s->capture == c) s->capture = NULL;
    for (capture **at = &all_captures; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            return;
        }
}

/* "If the capture has been invalidated, this will return an error and a NULL graph" [end]; "if it contains a
 * cross-stream branch that was not joined back", it is unjoined [guide]. */
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
    *out = NULL;
    vgpu_lock();
    stream *s = stream_of(handle);
    capture *c = s->capture;
    cudaError_t error = may_end(s);
    if (error) {
        if (c) capture_invalidate(c);
        vgpu_unlock();
        return failed(error);
    }
    take_out(c);
    if (c->is_invalid)
        error = cudaErrorStreamCaptureInvalidated;
    else if (!graph_is_joined(c->graph))
        error = cudaErrorStreamCaptureUnjoined;
    if (error)
        cudaGraphDestroy(c->graph);
    else
        *out = c->graph;
    free(c);
    vgpu_unlock();
    return failed(error);
}

/* "If this is called on cudaStreamLegacy while a blocking stream on the same device is capturing, it will
 * return cudaErrorStreamCaptureImplicit [...] The blocking stream capture is not invalidated" [status]. */
static cudaError_t status_of(const stream *s, enum cudaStreamCaptureStatus *status) {
    if (s->is_legacy && blocking_capture(s->device)) return cudaErrorStreamCaptureImplicit;
    if (!s->capture)
        *status = cudaStreamCaptureStatusNone;
    else
        *status = s->capture->is_invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    vgpu_lock();
    cudaError_t error = status_of(stream_of(handle), status);
    vgpu_unlock();
    return failed(error);
}

/* Dependencies are not told: who asks for them wants to add nodes of its own, which is not played. */
static cudaError_t capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                unsigned long long *id, cudaGraph_t *out,
                                const cudaGraphNode_t **dependencies, size_t *dependency_count) {
    vgpu_lock();
    stream *s = stream_of(handle);
    cudaError_t error = status_of(s, status);
    if (!error && s->capture) {
        if (id) *id = s->capture->id;
        if (out) *out = s->capture->graph;
    }
    if (dependencies) *dependencies = NULL;
    if (dependency_count) *dependency_count = 0;
    vgpu_unlock();
    return failed(error);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *out,
                                     const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                     size_t *dependency_count) {
    if (edges) *edges = NULL;
    return capture_info(handle, status, id, out, dependencies, dependency_count);
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *dependencies,
                                                const cudaGraphEdgeData *edges, size_t dependency_count,
                                                unsigned flags) {
    (void)s, (void)dependencies, (void)edges, (void)dependency_count, (void)flags;
    return cudaSuccess;
}
#else
/* Its name in CUDA 12 is cudaStreamGetCaptureInfo_v2, by the header; edges came later. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *out,
                                     const cudaGraphNode_t **dependencies, size_t *dependency_count) {
    return capture_info(handle, status, id, out, dependencies, dependency_count);
}
#endif
