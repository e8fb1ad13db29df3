/* Communicators: ranks of one machine that share memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nccl_fake.h"

static uint32_t *bells;
static double base_ns, bytes_per_ns, init_timeout_s;
static int reports_death;

__attribute__((constructor)) static void read_settings(void) {
    const char *dead = getenv("VGPU_NCCL_DEAD_PEER");
    base_ns = vgpu_number("VGPU_NCCL_US", 20) * 1e3;
    bytes_per_ns = vgpu_number("VGPU_NCCL_GBS", 100);
    init_timeout_s = vgpu_number("VGPU_NCCL_INIT_S", 600);
    reports_death = dead && !strcmp(dead, "error");
}

double nccl_base_ns(void) {
    return base_ns;
}

double nccl_bytes_per_ns(void) {
    return bytes_per_ns;
}

static void nap(long us) {
    struct timespec duration = {0, us * 1000};
    nanosleep(&duration, NULL);
}

static void *map_shared(const char *name, size_t size) {
    void *at = MAP_FAILED;
    int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
    if (fd < 0) return NULL;
    if (ftruncate(fd, (off_t)size) == 0)
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

/* Processes of one user find each other's engines by their ids. */
static void use_bells(void) {
    char name[64];
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!bells) {
        snprintf(name, sizeof name, "/vgpu-bells-%d", getuid());
        bells = map_shared(name, BELLS * sizeof *bells);
        if (bells) vgpu_use_bell(&bells[getpid() % BELLS]);
    }
    pthread_mutex_unlock(&once);
}

void ring_members(const comm *c) {
    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank && bells) vgpu_ring(&bells[c->header->pids[i] % BELLS]);
}

/* Whether a member has gone. NCCL notices that over sockets and InfiniBand, and not over shared memory or
 * NVLink: so it is told only where VGPU_NCCL_DEAD_PEER=error. */
int has_dead_member(comm *c) {
    if (!reports_death) return 0;
    for (int i = 0; i < c->ranks; i++)
        if (kill(c->header->pids[i], 0) && errno == ESRCH) {
            c->async_error = ncclRemoteError;
            return 1;
        }
    return 0;
}

static uint64_t hash_of(const char *name) { /* FNV-1a */
    uint64_t hash = 1469598103934665603ULL;
    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211ULL;
    return hash;
}

/* Where each table begins in the shared memory; gives its whole size. */
static size_t lay_out(comm *c, char *base) {
    size_t ranks = (size_t)c->ranks, at = sizeof(header);
#define TABLE(field, count)                                                                                  \
    c->field = (void *)(base + at);                                                                          \
    at = (at + (count) * sizeof *c->field + 63) & ~(size_t)63
    c->header = (header *)base;
    TABLE(arrivals, IN_FLIGHT * ranks);
    TABLE(votes, 2 * ranks);
    TABLE(messages, ranks * ranks * IN_FLIGHT);
    TABLE(data, IN_FLIGHT * ranks * EXCHANGED_BYTES);
    TABLE(message_data, ranks * ranks * IN_FLIGHT * EXCHANGED_BYTES);
    return at;
}

/* Blocks until all members have come, or until another thread aborts. `early` gets the handle before: NCCL
 * writes that of an initialization at once, and that of a split at its end. */
static ncclResult_t join(comm **out, comm **early, const char *name, int ranks, int rank,
                         const char *label) {
    if (ranks > 1024 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    comm *c = calloc(1, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s", name);
    c->rank = rank;
    c->ranks = ranks;
    c->hash = hash_of(name);
    cudaGetDevice(&c->device);
    char *base = map_shared(name, lay_out(c, NULL));
    if (!base) return ncclSystemError;
    lay_out(c, base);
    c->sends = calloc((size_t)ranks, sizeof *c->sends);
    c->receives = calloc((size_t)ranks, sizeof *c->receives);
    use_bells();
    c->header->pids[rank] = getpid();
    __atomic_add_fetch(&c->header->joined, 1, __ATOMIC_SEQ_CST);
    if (early) __atomic_store_n(early, c, __ATOMIC_SEQ_CST);
    ns_t until = vgpu_now() + (ns_t)(init_timeout_s * 1e9);
    while (__atomic_load_n(&c->header->joined, __ATOMIC_SEQ_CST) < (uint32_t)ranks) {
        if (c->is_aborted || vgpu_now() > until) {
            shm_unlink(name);
            return c->is_aborted ? ncclInternalError : ncclSystemError;
        }
        nap(500);
    }
    if (__atomic_add_fetch(&c->header->mapped, 1, __ATOMIC_SEQ_CST) == (uint32_t)ranks) shm_unlink(name);
    profiler_join(c, label);
    *out = c;
    return ncclSuccess;
}

static const char *label_of(const ncclConfig_t *config) {
    return config ? config->commName : NULL;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static unsigned made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/vgpu-%d-%u-%llx", getpid(),
             __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST), (unsigned long long)vgpu_now());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    return join(out, out, id.internal, ranks, rank, label_of(config));
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank) {
    return join(out, out, id.internal, ranks, rank, NULL);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *out, int ranks, int rank, int ids, ncclUniqueId *id,
                                      ncclConfig_t *config) {
    (void)ids;
    return join(out, out, id->internal, ranks, rank, label_of(config));
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    char name[128];
    int64_t sequence = ++parent->splits;
    vote *votes = parent->votes + (sequence & 1) * parent->ranks;
    votes[parent->rank].color = color;
    votes[parent->rank].key = key;
    __atomic_store_n(&votes[parent->rank].sequence, sequence, __ATOMIC_SEQ_CST);
    for (int i = 0; i < parent->ranks; i++)
        while (__atomic_load_n(&votes[i].sequence, __ATOMIC_SEQ_CST) < sequence) {
            if (parent->is_aborted) return ncclInternalError;
            nap(200);
        }
    *out = NULL;
    if (color < 0) return ncclSuccess; /* NCCL_SPLIT_NOCOLOR */
    int ranks = 0, rank = 0;
    for (int i = 0; i < parent->ranks; i++) {
        if (votes[i].color != color) continue;
        ranks++;
        rank += votes[i].key < key || (votes[i].key == key && i < parent->rank);
    }
    snprintf(name, sizeof name, "/vgpu-%llx-%lld-%d", (unsigned long long)parent->hash, (long long)sequence,
             color);
    return join(out, NULL, name, ranks, rank, label_of(config));
}

ncclResult_t ncclCommCount(const ncclComm_t c, int *ranks) {
    *ranks = c->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank) {
    *rank = c->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *device) {
    *device = c->device;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
    *error = c->async_error;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
    (void)c;
    return ncclSuccess;
}

/* Its memory stays: work may still be on its way. */
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    profiler_leave(c);
    return ncclSuccess;
}

/* What is on its way ends now. */
ncclResult_t ncclCommAbort(ncclComm_t c) {
    vgpu_lock();
    c->is_aborted = 1;
    vgpu_pump();
    vgpu_unlock();
    profiler_leave(c);
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t c, int flags) {
    (void)flags;
    return ncclCommAbort(c);
}

ncclResult_t ncclCommRegister(const ncclComm_t c, void *buffer, size_t size, void **handle) {
    (void)c, (void)size;
    *handle = buffer;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle) {
    (void)c, (void)handle;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **at, size_t size) {
    return cudaMalloc(at, size) ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclMemFree(void *at) {
    return cudaFree(at) ? ncclUnhandledCudaError : ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t c) {
    (void)c;
    return "";
}
