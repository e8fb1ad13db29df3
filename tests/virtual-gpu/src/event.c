/* Events. An event belongs to the device that was current when it was created. Rules of [guide] are those
 * named in capture.c; of [devices] CUDA C++ Programming Guide, "Multi-Device System", "Stream and Event
 * Behavior". */
#include <execinfo.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine.h"

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    event *e = calloc(1, sizeof *e);
    e->flags = flags;
    e->device = current_device;
    context_made(current_device);
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    vgpu_lock();
    timestamp_drop(e->time);
    vgpu_unlock();
    free(e);
    return cudaSuccess;
}

enum capture_state event_capture_state(event *e) {
    e->capture = NULL;
    if (!e->capture_id) return NOT_CAPTURED;
    for (capture *c = all_captures; c; c = c->next)
        if (c->id == e->capture_id) {
            e->capture = c;
            return CAPTURED_NOW;
        }
    return CAPTURED_BEFORE;
}

static cudaError_t record_in_capture(event *e, stream *s, unsigned flags) {
    capture *c = s->capture;
    if (c->is_invalid) return cudaErrorStreamCaptureInvalidated;
    operation op = {.kind = OP_RECORD_EXTERNAL, .event = e};
    if (!(flags & cudaEventRecordExternal)) {
        e->capture_id = c->id;
        e->slot = c->graph->slots++;
        op = (operation){.kind = OP_RECORD, .slot = e->slot};
    }
    graph_add(c->graph, s->branch, &op);
    return cudaSuccess;
}

/* "cudaEventRecord() will fail if the input event and input stream are associated to different devices"
 * [devices]. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t handle, unsigned flags) {
    vgpu_lock();
    stream *s = stream_of(handle);
    cudaError_t error = legacy_use(s);
    if (!error && s->device != e->device) error = cudaErrorInvalidResourceHandle;
    if (error || s->capture) {
        if (!error) error = record_in_capture(e, s, flags);
        vgpu_unlock();
        return failed(error);
    }
    timestamp_drop(e->time);
    e->time = timestamp_new();
    e->time->refs = 2;
    e->capture_id = 0;
    operation op = {.kind = OP_RECORD, .time = e->time};
    vgpu_unlock();
    return enqueue(handle, &op);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t handle) {
    return cudaEventRecordWithFlags(e, handle, cudaEventRecordDefault);
}

/* "It is invalid to synchronize or query the execution status of [...] a captured event" [guide]. Of an event
 * that was not captured it is a call that may be unsafe: PyTorch's watchdog of NCCL had to set the thread's
 * mode for its own queries (https://github.com/pytorch/pytorch/pull/104555). */
static cudaError_t may_ask(event *e) {
    if (event_capture_state(e) == NOT_CAPTURED) return unsafe_call();
    if (e->capture) capture_invalidate(e->capture);
    return cudaErrorCapturedEvent;
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    count(EVENT_QUERY);
    vgpu_lock();
    cudaError_t error = may_ask(e);
    if (!error && e->time && (!e->time->is_known || e->time->at > vgpu_now())) error = cudaErrorNotReady;
    vgpu_unlock();
    return failed(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    count(EVENT_SYNCHRONIZE);
    vgpu_lock();
    cudaError_t error = may_ask(e);
    if (error || !e->time) {
        vgpu_unlock();
        return failed(error);
    }
    wait_for(e->time);
    return cudaSuccess;
}

/* "cudaEventElapsedTime() will fail if the two input events are associated to different devices" [devices].
 */
static cudaError_t elapsed(float *ms, event *from, event *to) {
    ns_t now = vgpu_now();
    if (event_capture_state(from) || event_capture_state(to)) return cudaErrorCapturedEvent;
    if (from->device != to->device) return cudaErrorInvalidResourceHandle;
    if (!from->time || !to->time) return cudaErrorInvalidResourceHandle;
    if ((from->flags | to->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
    if (!from->time->is_known || !to->time->is_known) return cudaErrorNotReady;
    if (from->time->at > now || to->time->at > now) return cudaErrorNotReady;
    *ms = (float)((double)(to->time->at - from->time->at) / 1e6);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    vgpu_lock();
    cudaError_t error = elapsed(ms, from, to);
    vgpu_unlock();
    return failed(error);
}

/* A stream waits for a captured event: it joins that capture ([guide], "Cross-stream Dependencies and
 * Events"). "It is invalid to merge two separate capture graphs by waiting on a captured event from a stream
 * which is being captured and is associated with a different capture graph than the event" [guide]. */
static cudaError_t join_capture(stream *s, event *e) {
    capture *c = e->capture;
    if (c->is_invalid) return cudaErrorStreamCaptureInvalidated;
    if (s->is_legacy) { /* it cannot be captured */
        capture_invalidate(c);
        return cudaErrorStreamCaptureImplicit;
    }
    if (s->capture && s->capture != c) {
        capture_invalidate(c);
        capture_invalidate(s->capture);
        return cudaErrorStreamCaptureMerge;
    }
    if (!s->capture) {
        s->capture = c;
        s->branch = c->graph->branches++;
    }
    operation op = {.kind = OP_WAIT, .slot = e->slot};
    graph_add(c->graph, s->branch, &op);
    return cudaSuccess;
}

/* "It is invalid to wait on a non-captured event from a stream which is being captured without specifying the
 * cudaEventWaitExternal flag" [guide]. No stream waits for an event that was never recorded. */
static cudaError_t wait_in_capture(stream *s, const event *e) {
    if (s->capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
    if (!e->time && !e->capture_id) return cudaSuccess;
    capture_invalidate(s->capture);
    return cudaErrorStreamCaptureIsolation;
}

static void trace_wait(cudaStream_t handle) {
    void *stack[12];
    if (settings.trace == 'w' && !handle) backtrace_symbols_fd(stack, backtrace(stack, 12), STDERR_FILENO);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned flags) {
    vgpu_lock();
    stream *s = stream_of(handle);
    cudaError_t error = legacy_use(s);
    int is_external = (flags & cudaEventWaitExternal) != 0;
    enum capture_state captured = event_capture_state(e);
    timestamp *time = NULL;
    if (!error && !is_external && captured == CAPTURED_NOW)
        error = join_capture(s, e);
    else if (!error && !is_external && s->capture)
        error = wait_in_capture(s, e);
    else if (!error && !s->capture)
        time = e->time;
    if (time) time->refs++;
    vgpu_unlock();
    if (!time) return failed(error);
    trace_wait(handle);
    operation op = {.kind = OP_WAIT, .time = time};
    return enqueue(handle, &op);
}
