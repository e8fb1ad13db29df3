/* Time is algebra: no thread sleeps through kernels. A stream is a cursor in time. An operation whose inputs
 * are known is given its start and its end when it is enqueued, usually in the future; an event's time is the
 * cursor's; a query compares it with the clock; a synchronize sleeps until then. Only what depends on others
 * (a collective, a host function, an event that is not resolved) is queued, and one thread a process moves
 * those on. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine.h"

#define IDLE_NS 1000000000LL /* the engine looks at least this often */
#define REMOTE_NS                                                                                            \
    20000000LL /* and this often while others are waited for: one that was killed does not ring */

pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t engine_progress = PTHREAD_COND_INITIALIZER;
static uint32_t own_bell, *bell = &own_bell;
static int is_running, is_remote_waiting;

void vgpu_lock(void) {
    if (pthread_mutex_trylock(&engine_lock)) clock_lock(&engine_lock);
}

void vgpu_unlock(void) {
    pthread_mutex_unlock(&engine_lock);
}

void vgpu_ring(uint32_t *where) {
    __atomic_add_fetch(where, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, where, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void vgpu_use_bell(uint32_t *shared) {
    uint32_t *before = bell;
    __atomic_store_n(&bell, shared, __ATOMIC_SEQ_CST);
    vgpu_ring(before);
}

void engine_wake(void) {
    vgpu_ring(bell);
}

void engine_expect_remote(void) {
    is_remote_waiting = 1;
}

void vgpu_pump(void) {
    pump();
}

static ns_t later(ns_t a, ns_t b) {
    return a > b ? a : b;
}

static ns_t after(ns_t start, double duration) {
    return start == NEVER || isinf(duration) ? NEVER : start + (ns_t)duration;
}

static void carry_out(operation *op) {
    if (op->size <= settings.copied_bytes) {
        if (op->kind == OP_SET)
            memset(op->to, op->value, op->size);
        else
            memcpy(op->to, op->snapshot ? op->snapshot : op->from, op->size);
    }
    free(op->snapshot);
}

/* The next operation of a stream. 1 where its end is known, which may be in the future. *wake: when the
 * engine has to look again. */
int advance(stream *s, operation *op, ns_t *wake) {
    ns_t start = later(s->cursor, op->enqueued), end = start;
    switch (op->kind) {
    case OP_WAIT:
        if (!op->time->is_known) return 0;
        end = later(s->cursor, op->time->at);
        timestamp_drop(op->time);
        break;
    case OP_RECORD:
        op->time->is_known = 1;
        op->time->at = start;
        timestamp_drop(op->time);
        break;
    case OP_REMOTE: /* a device that hangs never comes to it */
        if (start == NEVER || !op->remote.poll(op->context, start, &end)) return 0;
        break;
    case OP_HOST: /* run by the engine when its time has come */
        if (op->host != HOST_DONE) {
            if (op->host == HOST_WAITS && wake && start < *wake) *wake = start;
            return 0;
        }
        end = start + (ns_t)op->duration;
        break;
    case OP_COPY:
    case OP_SET:
        carry_out(op);
        end = after(start, op->duration);
        break;
    default:
        end = after(start, op->duration);
    }
    s->cursor = end;
    s->ends[op->index % QUEUE_DEPTH] = end;
    return 1;
}

static int pump_stream(stream *s, ns_t *wake) {
    int moved = 0;
    while (s->head && advance(s, s->head, wake)) {
        operation *done = s->head;
        s->head = done->next;
        if (!s->head) s->tail = NULL;
        free(done);
        moved = 1;
    }
    return moved;
}

/* Moves on all that can be. The time at which a host function is due. */
ns_t pump(void) {
    ns_t wake;
    int moved, has_moved = 0;
    do {
        moved = is_remote_waiting = 0;
        wake = NEVER;
        for (stream *s = all_streams; s; s = s->next) {
            moved |= pump_stream(s, &wake);
            if (s->head && s->head->kind == OP_REMOTE) is_remote_waiting = 1;
        }
        has_moved |= moved;
    } while (moved);
    if (has_moved) pthread_cond_broadcast(&engine_progress);
    return wake;
}

static operation *due_host_function(ns_t now) {
    for (stream *s = all_streams; s; s = s->next) {
        operation *op = s->head;
        if (op && op->kind == OP_HOST && op->host == HOST_WAITS && later(s->cursor, op->enqueued) <= now)
            return op;
    }
    return NULL;
}

static void *engine(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "vgpu-engine");
    for (;;) {
        uint32_t *own = __atomic_load_n(&bell, __ATOMIC_SEQ_CST),
                 rung = __atomic_load_n(own, __ATOMIC_SEQ_CST);
        vgpu_lock();
        ns_t wake = pump(), now = vgpu_now();
        operation *due = wake <= now ? due_host_function(now) : NULL;
        if (due) due->host = HOST_RUNS;
        ns_t sleep = wake == NEVER ? IDLE_NS : wake - now;
        if (is_remote_waiting && sleep > REMOTE_NS) sleep = REMOTE_NS;
        vgpu_unlock();
        if (due) {
            due->fn(due->argument);
            vgpu_lock();
            due->duration = (double)(vgpu_now() - now);
            due->host = HOST_DONE;
            vgpu_unlock();
        } else if (sleep > 0) {
            struct timespec timeout = {sleep / 1000000000, sleep % 1000000000};
            syscall(SYS_futex, own, FUTEX_WAIT, rung, &timeout, NULL, 0);
        }
    }
    return NULL;
}

void engine_start(void) {
    if (is_running) return;
    is_running = 1;
    pthread_t thread;
    pthread_create(&thread, NULL, engine, NULL);
    pthread_detach(thread);
}
