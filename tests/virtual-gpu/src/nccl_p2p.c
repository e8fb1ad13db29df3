/* Sends and receives: a message passes when both have come to it. Those of a group on one stream are one
 * operation. */
#include <stdlib.h>
#include <string.h>

#include "nccl_fake.h"

#define OPEN 16 /* communicators and streams of one group */

static __thread int group_depth, open_count;
static __thread struct {
    description *messages;
    cudaStream_t stream;
} open_groups[OPEN];

typedef struct {
    message *slot;
    char *data;
    int64_t sequence;
} place;

static place place_of(const flight *f, int i) {
    const comm *c = f->of->comm;
    const leg *l = &f->of->legs[i];
    size_t from = (size_t)(l->is_send ? c->rank : l->peer), to = (size_t)(l->is_send ? l->peer : c->rank);
    size_t at = (from * (size_t)c->ranks + to) * IN_FLIGHT + (size_t)(f->leg_sequences[i] % IN_FLIGHT);
    return (place){&c->messages[at], c->message_data + at * EXCHANGED_BYTES, f->leg_sequences[i]};
}

/* 1 where it is there to be seen; 0 while the slot still holds an earlier message. */
static int publish(const leg *l, place p, ns_t start) {
    message *m = p.slot;
    if (l->is_send) {
        if (m->sent && __atomic_load_n(&m->consumed, __ATOMIC_SEQ_CST) < p.sequence - IN_FLIGHT) return 0;
        if (l->bytes <= EXCHANGED_BYTES) memcpy(p.data, l->buffer, l->bytes);
        m->send_start = start;
        m->send_link = vgpu_link_factor();
        m->bytes = (int64_t)l->bytes;
        __atomic_store_n(&m->sent, p.sequence, __ATOMIC_SEQ_CST);
    } else {
        m->receive_start = start;
        m->receive_link = vgpu_link_factor();
        __atomic_store_n(&m->received, p.sequence, __ATOMIC_SEQ_CST);
    }
    return 1;
}

/* The end of a message, 0 while the other side has not come. */
static ns_t end_of(const leg *l, place p, ns_t start) {
    const message *m = p.slot;
    const int64_t *other = l->is_send ? &m->received : &m->sent;
    if (__atomic_load_n(other, __ATOMIC_SEQ_CST) < p.sequence) return 0;
    ns_t other_start = l->is_send ? m->receive_start : m->send_start;
    double own_link = l->is_send ? m->send_link : m->receive_link,
           other_link = l->is_send ? m->receive_link : m->send_link;
    double link = own_link > other_link ? own_link : other_link;
    double takes = nccl_base_ns() / 2 + (double)l->bytes / nccl_bytes_per_ns() * link;
    return (other_start > start ? other_start : start) + (ns_t)takes;
}

static void consume(const flight *f) {
    for (int i = 0; i < f->of->leg_count; i++) {
        const leg *l = &f->of->legs[i];
        place p = place_of(f, i);
        if (l->is_send) continue;
        if (l->bytes <= EXCHANGED_BYTES) memcpy(l->buffer, p.data, l->bytes);
        __atomic_store_n(&p.slot->consumed, p.sequence, __ATOMIC_SEQ_CST);
    }
}

int poll_messages(flight *f, ns_t start, ns_t *end) {
    int published = 0, is_whole = 1;
    ns_t last = start;
    if (!f->is_published) f->start = start;
    f->is_published = 1;
    for (int i = 0; i < f->of->leg_count; i++) {
        if (f->leg_published[i]) continue;
        f->leg_published[i] = (char)publish(&f->of->legs[i], place_of(f, i), start);
        published += f->leg_published[i];
        is_whole &= f->leg_published[i];
    }
    if (published) ring_members(f->of->comm);
    for (int i = 0; i < f->of->leg_count && is_whole; i++) {
        ns_t ends = end_of(&f->of->legs[i], place_of(f, i), start);
        is_whole &= ends != 0;
        if (ends > last) last = ends;
    }
    if (!is_whole) {
        has_dead_member(f->of->comm);
        return 0;
    }
    consume(f);
    *end = last;
    return 1;
}

static description *open_group(comm *c, cudaStream_t stream) {
    for (int i = 0; i < open_count; i++)
        if (open_groups[i].messages->comm == c && open_groups[i].stream == stream)
            return open_groups[i].messages;
    if (open_count == OPEN) return NULL;
    description *d = calloc(1, sizeof *d);
    d->comm = c;
    d->kind = P2P;
    open_groups[open_count].messages = d;
    open_groups[open_count++].stream = stream;
    return d;
}

static ncclResult_t add(int is_send, void *buffer, size_t count, ncclDataType_t type, int peer, comm *c,
                        cudaStream_t stream) {
    if (type < 0 || type >= ncclNumTypes || peer < 0 || peer >= c->ranks) return ncclInvalidArgument;
    ncclGroupStart();
    description *d = open_group(c, stream);
    if (d) {
        d->legs = realloc(d->legs, (size_t)(d->leg_count + 1) * sizeof *d->legs);
        d->legs[d->leg_count++] = (leg){is_send, peer, buffer, count, count * size_of(type), type};
    }
    ncclResult_t result = ncclGroupEnd();
    return d ? result : ncclInternalError;
}

ncclResult_t ncclSend(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream) {
    return add(1, (void *)(uintptr_t)buffer, count, type, peer, c, stream);
}

ncclResult_t ncclRecv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream) {
    return add(0, buffer, count, type, peer, c, stream);
}

ncclResult_t ncclGroupStart(void) {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result = ncclSuccess;
    if (--group_depth > 0) return result;
    group_depth = 0;
    for (int i = 0; i < open_count; i++) {
        ncclResult_t one = issue(open_groups[i].messages, open_groups[i].stream);
        if (one) result = one;
    }
    open_count = 0;
    return result;
}
