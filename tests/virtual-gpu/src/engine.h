/* What the parts of the fake libcudart share. Functions are called with the engine's lock unless they say
 * otherwise. */
#ifndef ENGINE_H
#define ENGINE_H

#include <pthread.h>

#include "vgpu.h"

#define MAX_DEVICES 16
#define QUEUE_DEPTH 1024 /* operations that a stream takes before the host is held up */

/* An event as it was recorded once: its time, where that is known. Counted references. */
typedef struct {
    int refs, is_known;
    ns_t at;
} timestamp;

enum operation_kind {
    OP_KERNEL,
    OP_COPY,
    OP_SET,
    OP_HOST,
    OP_WAIT,
    OP_RECORD,
    OP_REMOTE,
    OP_RECORD_EXTERNAL
};

/* What a stream is given to do, or a graph to remember. */
typedef struct operation {
    enum operation_kind kind;
    struct operation *next;
    long index; /* in its stream */
    ns_t enqueued;
    double duration;    /* ns on a GPU that is not slow */
    timestamp *time;    /* OP_WAIT, OP_RECORD */
    int slot;           /* the same in a graph, where times differ from launch to launch */
    cudaEvent_t event;  /* OP_RECORD_EXTERNAL */
    void *to;           /* OP_COPY, OP_SET */
    const void *from;   /* OP_COPY */
    void *snapshot;     /* OP_COPY: pageable memory as it was when the copy was enqueued */
    int takes_snapshot; /* OP_COPY */
    size_t size;        /* OP_COPY, OP_SET */
    int value;          /* OP_SET */
    cudaHostFn_t fn;    /* OP_HOST */
    void *argument;     /* OP_HOST */
    enum { HOST_WAITS, HOST_RUNS, HOST_DONE } host;
    vgpu_remote remote; /* OP_REMOTE */
    void *context;      /* OP_REMOTE */
    int graph_launch;   /* it comes out of a graph */
} operation;

typedef struct {
    int branch; /* the stream of the capture, 0 for the one in which it began */
    operation op;
} graph_node;

typedef struct CUgraph_st {
    graph_node *nodes;
    int count, room, slots, branches;
} graph;

typedef struct capture {
    struct CUstream_st *origin;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    int is_invalid;
    unsigned long long id;
    graph *graph;
    struct capture *next;
} capture;

typedef struct CUstream_st {
    int device, priority;
    int is_blocking; /* waits for the legacy default stream and is waited for by it */
    int is_legacy;   /* is that one */
    ns_t cursor;     /* the end of what has been resolved */
    operation *head, *tail;
    long count;
    ns_t ends[QUEUE_DEPTH];
    capture *capture;
    int branch;
    struct CUstream_st *next;
} stream;

typedef struct CUevent_st {
    timestamp *time; /* NULL before the first record */
    unsigned flags;
    int device;
    capture *capture; /* set by event_capture_state */
    unsigned long long capture_id;
    int slot;
} event;

extern stream *all_streams;
extern capture *all_captures;
extern __thread int current_device;

cudaError_t failed(cudaError_t error); /* notes it for cudaGetLastError */

/* settings.c, without the lock */
extern struct settings {
    double kernel_ns, threads_per_ns, copy_gbs, device_copy_gbs;
    size_t copied_bytes, memory_bytes;
    int devices;
    char trace; /* 0, '1' stubs, 'k' kernels */
} settings;
extern const double clock_ghz;

/* clock.c */
ns_t clock_withheld(void);
void clock_account(void);
void clock_lock(pthread_mutex_t *lock); /* without the lock */
void clock_waited(ns_t since, ns_t at);

/* faults.c */
double fault_scaled(double duration); /* on this rank's device now; infinite where it hangs */

/* queue.c */
timestamp *timestamp_new(void);
void timestamp_drop(timestamp *time);
stream *stream_of(cudaStream_t handle);
stream *stream_new(unsigned flags, int priority);
void put(stream *s, operation *op); /* op is copied */
void order_after(stream *s, stream *other);
void order_legacy(stream *s);
cudaError_t enqueue(cudaStream_t handle, operation *op); /* without the lock */
void wait_for(timestamp *time);                          /* lets the lock go */
void wait_for_stream(stream *s);                         /* lets the lock go */

/* engine.c */
ns_t pump(void);
int advance(stream *s, operation *op, ns_t *wake);
void engine_start(void);
void engine_wake(void);
void engine_expect_remote(void);
extern pthread_mutex_t engine_lock;
extern pthread_cond_t engine_progress;

/* capture.c */
void capture_invalidate(capture *c);
cudaError_t unsafe_call(void);
cudaError_t legacy_use(const stream *s);
cudaError_t synchronizing_use(stream *s);

/* graph.c */
void graph_add(graph *g, int branch, const operation *op);
int graph_is_joined(const graph *g);

/* event.c */
enum capture_state { NOT_CAPTURED, CAPTURED_NOW, CAPTURED_BEFORE };
enum capture_state event_capture_state(event *e); /* sets e->capture */

/* memory.c */
enum cudaMemoryType memory_type(const void *at); /* takes the lock itself */

/* stats.c, without the lock */
enum counted {
    EVENT_QUERY,
    EVENT_SYNCHRONIZE,
    STREAM_QUERY,
    STREAM_SYNCHRONIZE,
    DEVICE_SYNCHRONIZE,
    BLOCKING_COPY,
    CAPTURE,
    INVALIDATED_CAPTURE,
    KERNEL,
    COLLECTIVE,
    COUNTED
};
void count(enum counted what);
void context_made(int device);

/* entry_point.c: libcuda, loaded; without the lock. NULL where there is none. */
void *driver_library(void);

#endif
