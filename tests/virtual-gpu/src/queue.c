/* Streams as queues: what is enqueued, in which order, and how the host waits for it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

stream *all_streams;
__thread int current_device;
static stream *legacy_streams[MAX_DEVICES];
static __thread stream *per_thread_streams[MAX_DEVICES];
static int blocking_streams;

timestamp *timestamp_new(void) {
    timestamp *time = calloc(1, sizeof *time);
    time->refs = 1;
    return time;
}

void timestamp_drop(timestamp *time) {
    if (time && --time->refs == 0) free(time);
}

stream *stream_new(unsigned flags, int priority) {
    stream *s = calloc(1, sizeof *s);
    s->device = current_device;
    s->is_blocking = !(flags & cudaStreamNonBlocking);
    s->priority = priority;
    s->next = all_streams;
    all_streams = s;
    blocking_streams += s->is_blocking;
    context_made(current_device);
    return s;
}

/* NULL and cudaStreamLegacy are the device's legacy default stream; cudaStreamPerThread is a blocking stream
 * of the thread's own (CUDA Programming Guide, "Default Stream"). */
stream *stream_of(cudaStream_t handle) {
    if (handle == cudaStreamPerThread) {
        stream **own = &per_thread_streams[current_device];
        if (!*own) *own = stream_new(cudaStreamDefault, 0);
        return *own;
    }
    if (handle && handle != cudaStreamLegacy) return handle;
    stream **legacy = &legacy_streams[current_device];
    if (!*legacy) {
        *legacy = stream_new(cudaStreamNonBlocking, 0);
        (*legacy)->is_legacy = 1;
    }
    return *legacy;
}

int vgpu_device_of(cudaStream_t handle) {
    vgpu_lock();
    int device = stream_of(handle)->device;
    vgpu_unlock();
    return device;
}

void put(stream *s, operation *op) {
    clock_account();
    op->index = s->count++;
    op->enqueued = vgpu_now();
    op->duration = fault_scaled(op->duration);
    s->ends[op->index % QUEUE_DEPTH] = NEVER;
    if (op->kind == OP_REMOTE) count(COLLECTIVE);
    if (op->kind == OP_REMOTE) op->context = op->remote.begin(op->remote.description, op->graph_launch);
    if (!s->head && advance(s, op, NULL)) {
        if (op->kind == OP_RECORD || op->kind == OP_REMOTE) pump();
        return;
    }
    if (op->takes_snapshot && op->size <= settings.copied_bytes) {
        op->snapshot = malloc(op->size);
        memcpy(op->snapshot, op->from, op->size);
    }
    operation *kept = malloc(sizeof *kept);
    *kept = *op;
    kept->next = NULL;
    if (s->tail)
        s->tail->next = kept;
    else
        s->head = kept;
    s->tail = kept;
    engine_start();
    if (op->kind == OP_REMOTE) engine_expect_remote();
    if (op->kind == OP_HOST || op->kind == OP_REMOTE) engine_wake();
}

/* What is in `other` now comes before what `s` is given next. */
void order_after(stream *s, stream *other) {
    if (other == s || (!other->head && other->cursor <= vgpu_now())) return;
    timestamp *time = timestamp_new();
    time->refs = 2;
    operation record = {.kind = OP_RECORD, .time = time}, wait = {.kind = OP_WAIT, .time = time};
    put(other, &record);
    put(s, &wait);
}

/* "The legacy default stream is an implicit stream which synchronizes with all other streams in the same
 * CUcontext except for non-blocking streams" (CUDA Runtime API, "Stream synchronization behavior"). */
void order_legacy(stream *s) {
    if (!blocking_streams) return;
    if (s->is_legacy) {
        for (stream *other = all_streams; other; other = other->next)
            if (other->is_blocking && other->device == s->device) order_after(s, other);
    } else if (s->is_blocking && legacy_streams[s->device]) {
        order_after(s, legacy_streams[s->device]);
    }
}

/* Until the stream has room for one more. Lets the lock go. */
static void wait_for_room(stream *s) {
    for (;;) {
        ns_t oldest = s->count >= QUEUE_DEPTH ? s->ends[s->count % QUEUE_DEPTH] : 0;
        if (oldest <= vgpu_now()) return;
        if (oldest == NEVER) {
            pthread_cond_wait(&engine_progress, &engine_lock);
            continue;
        }
        ns_t since = vgpu_now();
        vgpu_unlock();
        vgpu_sleep_until(oldest);
        vgpu_lock();
        clock_waited(since, oldest);
    }
}

cudaError_t enqueue(cudaStream_t handle, operation *op) {
    vgpu_lock();
    stream *s = stream_of(handle);
    cudaError_t error = legacy_use(s);
    if (!error && s->capture) {
        error = s->capture->is_invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
        if (!error) graph_add(s->capture->graph, s->branch, op);
    } else if (!error) {
        order_legacy(s);
        wait_for_room(s);
        put(s, op);
    }
    vgpu_unlock();
    return failed(error);
}

cudaError_t vgpu_kernel(cudaStream_t handle, double duration, const char *name) {
    count(KERNEL);
    if (settings.trace == 'k')
        fprintf(stderr, "virtual GPU: %p %.100s %.1f us\n", (void *)handle, name ? name : "?",
                duration / 1e3);
    /* "A kernel launch will fail if it is issued to a stream that is not associated to the current device"
     * (CUDA Programming Guide, "Multi-Device System", "Stream and Event Behavior"). */
    if (vgpu_device_of(handle) != current_device) return failed(cudaErrorInvalidResourceHandle);
    operation op = {.kind = OP_KERNEL,
                    .duration = duration > settings.kernel_ns ? duration : settings.kernel_ns};
    return enqueue(handle, &op);
}

cudaError_t vgpu_enqueue_remote(cudaStream_t handle, const vgpu_remote *remote) {
    if (settings.trace == 'k') fprintf(stderr, "virtual GPU: %p collective\n", (void *)handle);
    operation op = {.kind = OP_REMOTE, .remote = *remote};
    return enqueue(handle, &op);
}

int vgpu_is_capturing(cudaStream_t handle) {
    vgpu_lock();
    int is_capturing = stream_of(handle)->capture != NULL;
    vgpu_unlock();
    return is_capturing;
}

/* Until that time has come. Called with the lock, returns without. */
void wait_for(timestamp *time) {
    clock_account();
    ns_t since = vgpu_now();
    time->refs++;
    while (!time->is_known)
        pthread_cond_wait(&engine_progress, &engine_lock);
    ns_t at = time->at;
    timestamp_drop(time);
    vgpu_unlock();
    vgpu_sleep_until(at);
    clock_waited(since, at);
}

/* Until what is in the stream now has ended. Called with the lock, returns without. */
void wait_for_stream(stream *s) {
    if (!s->head) {
        clock_account();
        ns_t since = vgpu_now(), at = s->cursor;
        vgpu_unlock();
        vgpu_sleep_until(at);
        clock_waited(since, at);
        return;
    }
    timestamp *time = timestamp_new();
    time->refs = 2;
    operation record = {.kind = OP_RECORD, .time = time};
    put(s, &record);
    wait_for(time);
    vgpu_lock();
    timestamp_drop(time);
    vgpu_unlock();
}
