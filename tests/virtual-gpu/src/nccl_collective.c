/* Collectives: one starts on each rank when its stream comes to it, and ends on all at the same time: when
 * the last has started, plus what its bytes take on the slowest link. Calls of a group are enqueued one by
 * one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_fake.h"

const char *const kind_names[] = {"AllReduce", "Reduce",  "Broadcast", "AllGather", "ReduceScatter",
                                  "Gather",    "Scatter", "AlltoAll",  "SendRecv"};

static void *begin(void *given, int graph_launch) {
    flight *f = calloc(1, sizeof *f);
    f->of = given;
    f->graph_launch = graph_launch;
    comm *c = f->of->comm;
    if (f->of->kind == P2P) {
        f->leg_sequences = calloc((size_t)f->of->leg_count, sizeof *f->leg_sequences);
        f->leg_published = calloc((size_t)f->of->leg_count, 1);
        for (int i = 0; i < f->of->leg_count; i++) {
            const leg *l = &f->of->legs[i];
            f->leg_sequences[i] = l->is_send ? ++c->sends[l->peer] : ++c->receives[l->peer];
        }
    } else {
        f->sequence = ++c->enqueued;
    }
    profiler_enqueue(f);
    return f;
}

/* The operation is over for this rank. */
void land(flight *f) {
    if (!f->graph_launch) {
        free(f->of->legs);
        free(f->of);
    }
    free(f->leg_sequences);
    free(f->leg_published);
    free(f->events);
    free(f);
}

static arrival *arrivals_of(const comm *c, int64_t sequence) {
    return c->arrivals + (sequence % IN_FLIGHT) * c->ranks;
}

static void publish(flight *f, ns_t start) {
    const description *d = f->of;
    comm *c = d->comm;
    arrival *own = &arrivals_of(c, f->sequence)[c->rank];
    f->start = start > c->last_end ? start : c->last_end;
    f->is_published = 1;
    give(d, f->sequence);
    own->start = f->start;
    own->bytes = (int64_t)d->in;
    own->link = vgpu_link_factor();
    own->kind = (int)d->kind;
    __atomic_store_n(&own->sequence, f->sequence, __ATOMIC_SEQ_CST);
    ring_members(c);
}

/* Ranks that disagree about what they do, or how much: a real NCCL hangs, or worse. Says so once. */
static int has_mismatch(const description *d, const arrival *arrivals, int64_t sequence) {
    comm *c = d->comm;
    int is_even = d->kind == ALL_REDUCE || d->kind == ALL_GATHER || d->kind == REDUCE_SCATTER;
    for (int i = 0; i < c->ranks; i++) {
        if (arrivals[i].kind == (int)d->kind && !(is_even && arrivals[i].bytes != (int64_t)d->in)) continue;
        if (c->mismatch != sequence + 1)
            fprintf(stderr, "virtual NCCL: rank %d is in %s of %zu bytes and rank %d in %s of %lld (operation %lld of %s)\n",
                    c->rank, kind_names[d->kind], d->in, i, kind_names[arrivals[i].kind], (long long)arrivals[i].bytes,
                    (long long)sequence, c->name);
        c->mismatch = sequence + 1;
        return 1;
    }
    return 0;
}

/* Bytes that pass each link, by ring algorithms (nccl-tests, doc/PERFORMANCE.md). */
static double moved_bytes(const description *d) {
    double ranks = d->comm->ranks, most = (double)(d->in > d->out ? d->in : d->out);
    switch (d->kind) {
    case ALL_REDUCE:
        return 2 * (ranks - 1) / ranks * most;
    case BROADCAST:
    case REDUCE:
        return most;
    default:
        return (ranks - 1) / ranks * most;
    }
}

/* Somebody has not come yet; or never will. */
static int no_arrival(comm *c) {
    has_dead_member(c);
    return 0;
}

static int poll_collective(flight *f, ns_t start, ns_t *end) {
    const description *d = f->of;
    comm *c = d->comm;
    if (c->resolved != f->sequence - 1)
        return 0; /* a communicator's operations keep their order, on whichever streams */
    if (!f->is_published) publish(f, start);
    arrival *arrivals = arrivals_of(c, f->sequence);
    ns_t last = 0;
    double link = 1;
    for (int i = 0; i < c->ranks; i++) {
        if (__atomic_load_n(&arrivals[i].sequence, __ATOMIC_SEQ_CST) < f->sequence) return no_arrival(c);
        if (arrivals[i].start > last) last = arrivals[i].start;
        if (arrivals[i].link > link) link = arrivals[i].link;
    }
    if (has_mismatch(d, arrivals, f->sequence)) return no_arrival(c);
    *end = last + (ns_t)(nccl_base_ns() + moved_bytes(d) / nccl_bytes_per_ns() * link);
    take(d, f->sequence);
    c->resolved = f->sequence;
    c->last_end = *end;
    return 1;
}

static int poll(void *context, ns_t start, ns_t *end) {
    flight *f = context;
    if (f->of->comm->is_aborted) {
        *end = vgpu_now();
        land(f);
        return 1;
    }
    if (!(f->of->kind == P2P ? poll_messages(f, start, end) : poll_collective(f, start, end))) return 0;
    profiler_finish(f, *end);
    land(f);
    return 1;
}

ncclResult_t issue(description *d, cudaStream_t stream) {
    vgpu_remote remote = {begin, poll, d};
    d->is_captured = vgpu_is_capturing(stream);
    d->captured_mask = profiler_mask(d->comm);
    profiler_api(d, stream);
    void *group_event = d->group_event;
    cudaError_t error = vgpu_enqueue_remote(stream, &remote);
    profiler_api_end(group_event);
    return error ? ncclUnhandledCudaError : ncclSuccess;
}

typedef struct {
    size_t in, out, count; /* elements */
} sizes;

static ncclResult_t collective(enum kind kind, const void *send, void *receive, sizes n, ncclDataType_t type,
                               ncclRedOp_t op, int root, comm *c, cudaStream_t stream) {
    if (type < 0 || type >= ncclNumTypes || root < 0 || root >= c->ranks) return ncclInvalidArgument;
    if (c->is_aborted) return ncclInvalidUsage;
    description *d = calloc(1, sizeof *d);
    *d = (description){
        .comm = c, .kind = kind, .root = root, .send = send, .receive = receive, .type = type, .op = op};
    d->in = n.in * size_of(type);
    d->out = n.out * size_of(type);
    d->count = n.count;
    return issue(d, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t stream) {
    return collective(ALL_REDUCE, send, receive, (sizes){n, n, n}, type, op, 0, c, stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t n, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t stream) {
    return collective(REDUCE, send, receive, (sizes){n, n, n}, type, op, root, c, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t n, ncclDataType_t type, int root,
                           ncclComm_t c, cudaStream_t stream) {
    return collective(BROADCAST, c->rank == root ? send : NULL, receive, (sizes){n, n, n}, type, ncclSum,
                      root, c, stream);
}

ncclResult_t ncclBcast(void *buffer, size_t n, ncclDataType_t type, int root, ncclComm_t c,
                       cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, n, type, root, c, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream) {
    sizes elements = {n, n * (size_t)c->ranks, n};
    return collective(ALL_GATHER, send, receive, elements, type, ncclSum, 0, c, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t stream) {
    sizes elements = {n * (size_t)c->ranks, n, n};
    return collective(REDUCE_SCATTER, send, receive, elements, type, op, 0, c, stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t c,
                          cudaStream_t stream) {
    sizes elements = {n * (size_t)c->ranks, n * (size_t)c->ranks, n};
    return collective(ALL_TO_ALL, send, receive, elements, type, ncclSum, 0, c, stream);
}

ncclResult_t ncclGather(const void *send, void *receive, size_t n, ncclDataType_t type, int root,
                        ncclComm_t c, cudaStream_t stream) {
    sizes elements = {n, n * (size_t)c->ranks, n};
    return collective(GATHER, send, receive, elements, type, ncclSum, root, c, stream);
}

ncclResult_t ncclScatter(const void *send, void *receive, size_t n, ncclDataType_t type, int root,
                         ncclComm_t c, cudaStream_t stream) {
    sizes elements = {n * (size_t)c->ranks, n, n};
    return collective(SCATTER, c->rank == root ? send : NULL, receive, elements, type, ncclSum, root, c,
                      stream);
}

/* An operator that multiplies by a number first: a sum, here. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, int residence,
                                      ncclComm_t c) {
    (void)scalar, (void)type, (void)residence, (void)c;
    *op = ncclSum;
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t c) {
    (void)op, (void)c;
    return ncclSuccess;
}
