/* What the parts of the fake libnccl share. */
#ifndef NCCL_FAKE_H
#define NCCL_FAKE_H

#include <pthread.h>

#include "nccl_abi.h"

#define IN_FLIGHT 8           /* operations of a communicator that may be published and not read by all */
#define EXCHANGED_BYTES 65536 /* of a rank in one operation, up to which data is really exchanged */
#define BELLS 4096
#define TIMED 64 /* NCCL's MAX_PROFILER_EVENTS_PER_CHANNEL: works whose times a device keeps */

enum kind {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    KINDS,
    P2P = KINDS
};
extern const char *const kind_names[];

/* In shared memory: one per operation in flight and rank. `sequence` is written last. */
typedef struct {
    int64_t sequence;
    ns_t start;
    int64_t bytes;
    double link; /* how much slower this rank's links are */
    int kind;
} arrival;

/* In shared memory: one per sender, receiver and message in flight. */
typedef struct {
    int64_t sent, received, consumed; /* sequence numbers */
    ns_t send_start, receive_start;
    double send_link, receive_link;
    int64_t bytes;
} message;

typedef struct {
    int64_t sequence;
    int color, key;
} vote; /* of a split */

typedef struct {
    uint32_t joined, mapped;
    int pids[1024];
} header;

typedef struct comm {
    char name[128]; /* of the shared memory */
    uint64_t hash;
    int rank, ranks, device;
    header *header;
    arrival *arrivals;
    message *messages;
    vote *votes;
    char *data, *message_data;
    int64_t enqueued, resolved, splits;
    int64_t mismatch; /* an operation of which was said that ranks disagree about it, from 1; 0: none */
    int64_t *sends, *receives;
    ns_t last_end;
    volatile int is_aborted;
    volatile ncclResult_t async_error;
    void *profiler;                   /* the plugin's context */
    uint64_t sequence_of[KINDS];      /* by function, as the profiler and RAS count */
    int64_t device_works, host_works; /* whose difference makes times foreign: nccl_profiler.c */
    struct {
        ns_t start, end;
    } times[TIMED];
} comm;

typedef struct {
    int is_send, peer;
    void *buffer;
    size_t count, bytes;
    ncclDataType_t type;
} leg;

/* An operation as it was called. One that a graph captured is kept; any other goes with its end. */
typedef struct {
    comm *comm;
    enum kind kind;
    int root;
    const void *send;
    void *receive;
    size_t in, out, count; /* bytes that this rank gives and gets; elements */
    ncclDataType_t type;
    ncclRedOp_t op;
    leg *legs; /* of a group of sends and receives */
    int leg_count;
    int is_captured;
    int captured_mask; /* of the profiler, when it was captured */
    void *group_event; /* of the profiler */
} description;

/* One that is on its way. */
typedef struct {
    description *of;
    int graph_launch;
    int64_t sequence;
    int is_published;
    ns_t start;
    int64_t *leg_sequences;
    char *leg_published;
    void **events;        /* of the profiler: one, or one a leg */
    int is_timed;         /* by the profiler */
    int64_t work, behind; /* its number by the device's count, and how far the host's is behind */
} flight;

size_t size_of(ncclDataType_t type);

/* nccl_comm.c */
int has_dead_member(comm *c);
void ring_members(const comm *c);
double nccl_base_ns(void);
double nccl_bytes_per_ns(void);

/* nccl_data.c */
void give(const description *d, int64_t sequence);
void take(const description *d, int64_t sequence);

/* nccl_collective.c */
ncclResult_t issue(description *d, cudaStream_t stream);
void land(flight *f);

/* nccl_p2p.c */
int poll_messages(flight *f, ns_t start, ns_t *end);

/* nccl_profiler.c */
void profiler_join(comm *c, const char *label);
void profiler_leave(comm *c);
int profiler_mask(const comm *c);
void profiler_api(description *d, cudaStream_t stream);
void profiler_api_end(void *group_event);
void profiler_enqueue(flight *f);
void profiler_finish(flight *f, ns_t end); /* under the engine's lock */

#endif
