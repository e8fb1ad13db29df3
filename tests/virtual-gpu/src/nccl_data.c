/* Data, as far as it is small: objects and metadata that programs decide by. */
#include <stdlib.h>
#include <string.h>

#include "nccl_fake.h"

size_t size_of(ncclDataType_t type) {
    static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

static char *data_of(const comm *c, int64_t sequence, int rank) {
    return c->data + ((size_t)(sequence % IN_FLIGHT) * (size_t)c->ranks + (size_t)rank) * EXCHANGED_BYTES;
}

void give(const description *d, int64_t sequence) {
    if (d->in <= EXCHANGED_BYTES && d->send)
        memcpy(data_of(d->comm, sequence, d->comm->rank), d->send, d->in);
}

#define REDUCE_AS(type)                                                                                      \
    static void reduce_##type(type *into, const type *from, size_t count, ncclRedOp_t op) {                  \
        for (size_t i = 0; i < count; i++)                                                                   \
            if (op == ncclProd)                                                                              \
                into[i] = (type)(into[i] * from[i]);                                                         \
            else if (op == ncclMax)                                                                          \
                into[i] = into[i] > from[i] ? into[i] : from[i];                                             \
            else if (op == ncclMin)                                                                          \
                into[i] = into[i] < from[i] ? into[i] : from[i];                                             \
            else                                                                                             \
                into[i] = (type)(into[i] + from[i]);                                                         \
    }
REDUCE_AS(int8_t)
REDUCE_AS(uint8_t)
REDUCE_AS(int32_t)
REDUCE_AS(uint32_t)
REDUCE_AS(int64_t)
REDUCE_AS(uint64_t)
REDUCE_AS(float)
REDUCE_AS(double)

/* Types of 16 and 8 bits are not reduced: nothing decides by them. */
static void reduce(void *into, const void *from, size_t bytes, ncclDataType_t type, ncclRedOp_t op) {
    size_t count = bytes / size_of(type);
    switch (type) {
    case ncclInt8:
        reduce_int8_t(into, from, count, op);
        break;
    case ncclUint8:
        reduce_uint8_t(into, from, count, op);
        break;
    case ncclInt32:
        reduce_int32_t(into, from, count, op);
        break;
    case ncclUint32:
        reduce_uint32_t(into, from, count, op);
        break;
    case ncclInt64:
        reduce_int64_t(into, from, count, op);
        break;
    case ncclUint64:
        reduce_uint64_t(into, from, count, op);
        break;
    case ncclFloat32:
        reduce_float(into, from, count, op);
        break;
    case ncclFloat64:
        reduce_double(into, from, count, op);
        break;
    default:
        break;
    }
}

static void average(void *at, size_t bytes, ncclDataType_t type, int ranks) {
    for (size_t i = 0; type == ncclFloat32 && i < bytes / sizeof(float); i++)
        ((float *)at)[i] /= (float)ranks;
    for (size_t i = 0; type == ncclFloat64 && i < bytes / sizeof(double); i++)
        ((double *)at)[i] /= ranks;
}

static void take_reduced(const description *d, int64_t sequence) {
    const comm *c = d->comm;
    size_t offset = d->kind == REDUCE_SCATTER ? (size_t)c->rank * d->out : 0;
    char *result = malloc(d->out + 1);
    memcpy(result, data_of(c, sequence, 0) + offset, d->out);
    for (int i = 1; i < c->ranks; i++)
        reduce(result, data_of(c, sequence, i) + offset, d->out, d->type, d->op);
    if (d->op == ncclAvg) average(result, d->out, d->type, c->ranks);
    memcpy(d->receive, result, d->out);
    free(result);
}

static void take_from_all(const description *d, int64_t sequence, size_t offset, size_t size) {
    for (int i = 0; i < d->comm->ranks; i++)
        memcpy((char *)d->receive + (size_t)i * size, data_of(d->comm, sequence, i) + offset, size);
}

void take(const description *d, int64_t sequence) {
    const comm *c = d->comm;
    size_t part = d->in / (size_t)c->ranks;
    if (d->in > EXCHANGED_BYTES) return;
    switch (d->kind) {
    case BROADCAST:
        memcpy(d->receive, data_of(c, sequence, d->root), d->out);
        break;
    case SCATTER:
        memcpy(d->receive, data_of(c, sequence, d->root) + (size_t)c->rank * d->out, d->out);
        break;
    case ALL_GATHER:
        take_from_all(d, sequence, 0, d->in);
        break;
    case GATHER:
        if (c->rank == d->root) take_from_all(d, sequence, 0, d->in);
        break;
    case ALL_TO_ALL:
        take_from_all(d, sequence, (size_t)c->rank * part, part);
        break;
    case REDUCE:
        if (c->rank == d->root) take_reduced(d, sequence);
        break;
    case ALL_REDUCE:
    case REDUCE_SCATTER:
        take_reduced(d, sequence);
        break;
    default:
        break;
    }
}
