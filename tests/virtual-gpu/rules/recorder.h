/* What the recorder keeps. */
#ifndef RECORDER_H
#define RECORDER_H

#include "../../nccl-harness/nccl_profiler.h"

#define MOST_EVENTS 4096

typedef struct {
    uint64_t type, sequence, start, stop;
    void *parent;
    const char *func;
    size_t count;
    int peer, is_stopped, is_captured;
} event;

typedef struct {
    int wanted, interface, count, finalized;
    int *mask; /* NCCL's, which may be changed at any time */
    event events[MOST_EVENTS];
} recording;

#endif
