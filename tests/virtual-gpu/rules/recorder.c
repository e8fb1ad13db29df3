/* A profiler plugin that keeps what it is told, for nccl.c, which finds `recorded` in it. */
#include <string.h>

#include "recorder.h"

recording recorded = {.wanted = EVENT_COLL | EVENT_P2P | EVENT_KERNEL_CH};

static int init5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                 logger log) {
    (void)id, (void)name, (void)nodes, (void)ranks, (void)rank, (void)log;
    *context = &recorded;
    recorded.mask = mask;
    *mask = recorded.wanted;
    recorded.interface = 5;
    return 0;
}

static int init4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
                 logger log) {
    init5(context, id, mask, name, nodes, ranks, rank, log);
    recorded.interface = 4;
    return 0;
}

static int init7(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                 logger log) {
    init5(context, id, mask, name, nodes, ranks, rank, log);
    recorded.interface = 7;
    return 0;
}

static int start(void *context, void **handle, void *given) {
    const descr_v5 *d = given;
    int at = __atomic_fetch_add(&recorded.count, 1, __ATOMIC_SEQ_CST);
    (void)context;
    if (at >= MOST_EVENTS) return 0;
    event *e = &recorded.events[at];
    e->type = d->type;
    e->parent = d->parentObj;
    if (d->type == EVENT_COLL) {
        e->func = d->coll.func;
        e->sequence = d->coll.seqNumber;
        e->count = d->coll.count;
    } else if (d->type == EVENT_P2P) {
        e->func = d->p2p.func;
        e->peer = d->p2p.peer;
        e->count = d->p2p.count;
    } else if (d->type == EVENT_KERNEL_CH) {
        e->start = d->kernelCh.pTimer;
    } else if (d->type == EVENT_COLL_API) {
        e->is_captured = d->collApi.graphCaptured;
    }
    *handle = e;
    return 0;
}

static int stop(void *handle) {
    ((event *)handle)->is_stopped = 1;
    return 0;
}

static int record(void *handle, int state, state_args *arguments) {
    if (state == STATE_KERNEL_CH_STOP) ((event *)handle)->stop = arguments->kernelCh.pTimer;
    return 0;
}

static int finalize(void *context) {
    (void)context;
    recorded.finalized++;
    return 0;
}

const profiler ncclProfiler_v4 = {"recorder", {.v4 = init4}, start, stop, record, finalize};
const profiler ncclProfiler_v5 = {"recorder", {.v5 = init5}, start, stop, record, finalize};
const profiler ncclProfiler_v7 = {"recorder", {.v5 = init7}, start, stop, record, finalize};
