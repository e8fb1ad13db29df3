/* Plays NCCL for a profiler plugin: loads it as NCCL does, and calls it in NCCL's order from NCCL's threads.
 *
 *   harness PLUGIN VERSION SCENARIO [COLLECTIVES]
 *
 * prints one line of what it did, and ends with 1 where the plugin answered what it must not. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_profiler.h"

#define CHANNELS 32
#define COMMS 64
#define QUEUE 1024

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static int version;
static void *library;
static profiler *plugin;
static int mask; /* NCCL's global: the same word for every communicator */
static struct {
    void *context;
    uint64_t sequence;
} comms[COMMS];
static unsigned long enqueued, timed, abandoned;

/* What the plugin asks for at first. */
static int asked(void) { return EVENT_COLL | EVENT_P2P | EVENT_KERNEL_CH | (version > 4 ? EVENT_GROUP_API : 0); }

static void load(const char *path) {
    char symbol[32];
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    plugin = dlsym(library, symbol);
    CHECK(plugin && plugin->name && plugin->name[0]);
}

static void join_as(int i, uint64_t id, int ranks) {
    char name[32];
    snprintf(name, sizeof name, "comm_%d", i);
    comms[i].context = (void *)-1;
    int result = version == 4 ? plugin->init.v4(&comms[i].context, &mask, i ? name : NULL, id, 1, ranks, 0, NULL)
                              : plugin->init.v5(&comms[i].context, id, &mask, i ? name : NULL, 1, ranks, 0, NULL);
    CHECK(result == 0 && comms[i].context != (void *)-1);
}

static void join(int i, int ranks) {
    join_as(i, 0xc0117000 + (uint64_t)i, ranks);
}

/* One event by its version's layout. `count` is of floats. */
static void *start(int type, void *context, void *parent, uint64_t number, size_t count, const char *func) {
    void *handle = (void *)-1; /* what stands there before is nobody's business */
    union {
        descr_v4 v4;
        descr_v5 v5;
        descr_v7 v7;
    } descr;
    memset(&descr, 0xa5, sizeof descr); /* what is not set must not be read */
#define FILL(v)                                                                                                        \
    do {                                                                                                               \
        (v).type = type, (v).parentObj = parent, (v).rank = 0;                                                         \
        if (type == EVENT_COLL) {                                                                                      \
            (v).coll.seqNumber = number, (v).coll.func = func, (v).coll.count = count;                                 \
            (v).coll.datatype = "ncclFloat32", (v).coll.nChannels = CHANNELS;                                          \
            (v).coll.algo = "RING", (v).coll.proto = "SIMPLE";                                                         \
        } else if (type == EVENT_GROUP_API) {                                                                          \
            *(unsigned char *)&(v).coll = (unsigned char)number; /* groupApi.graphCaptured */                          \
        } else if (type == EVENT_P2P) {                                                                                \
            (v).p2p.func = func, (v).p2p.peer = (int)number, (v).p2p.count = count;                                    \
            (v).p2p.datatype = "ncclBfloat16", (v).p2p.nChannels = CHANNELS;                                           \
        } else {                                                                                                       \
            (v).kernelCh.channelId = (uint8_t)count, (v).kernelCh.pTimer = number;                                     \
        }                                                                                                              \
    } while (0)
    if (version == 4) FILL(descr.v4);
    else if (version < 7) FILL(descr.v5);
    else FILL(descr.v7);
    CHECK(plugin->startEvent(context, &handle, &descr) == 0 && handle != (void *)-1);
    return handle;
}

static void *enqueue(int i, size_t count, const char *func) {
    enqueued++;
    return start(EVENT_COLL, comms[i].context, NULL, comms[i].sequence++, count, func);
}

/* A message with another rank of the communicator, of which this is rank 0. */
static void *pass(int i, int peer, size_t count, const char *func) {
    return start(EVENT_P2P, comms[i].context, NULL, (uint64_t)peer, count, func);
}

/* The kernel of a collective: all of its channels, begun in one order and ended in another. */
static void run_kernel(void *context, void *coll, uint64_t at, int channels) {
    void *kernel[CHANNELS];
    for (int c = 0; c < channels; c++) kernel[c] = start(EVENT_KERNEL_CH, context, coll, at + (uint64_t)c, (size_t)c, NULL);
    for (int c = channels - 1; c >= 0; c--) {
        state_args args = {.kernelCh = {at + 5000 + (uint64_t)c}};
        CHECK(plugin->recordEventState(kernel[c], STATE_KERNEL_CH_STOP, &args) == 0);
        CHECK(plugin->stopEvent(kernel[c]) == 0);
    }
}

static void finalize_all(int count) {
    for (int i = 0; i < count; i++) CHECK(plugin->finalize(comms[i].context) == 0);
}

/* NCCL's two threads: one enqueues and stops, one watches kernels. */
static struct {
    void *context, *coll;
} queue[QUEUE];
static volatile unsigned long put, got;
static volatile int over;

static void *watch(void *unused) {
    uint64_t clock = 1000;
    for (;;) {
        unsigned long seen = __atomic_load_n(&put, __ATOMIC_ACQUIRE);
        if (got == seen) {
            if (__atomic_load_n(&over, __ATOMIC_ACQUIRE) && got == __atomic_load_n(&put, __ATOMIC_ACQUIRE)) return unused;
            sched_yield();
            continue;
        }
        run_kernel(queue[got % QUEUE].context, queue[got % QUEUE].coll, clock += 100000, CHANNELS);
        __atomic_store_n(&got, got + 1, __ATOMIC_RELEASE);
    }
}

static void storm(unsigned long collectives) {
    pthread_t watcher;
    for (int i = 0; i < COMMS; i++) join(i, 8);
    CHECK(mask == asked());
    CHECK(pthread_create(&watcher, NULL, watch, NULL) == 0);
    for (unsigned long n = 0; n < collectives; n++) {
        int i = (int)(n % COMMS);
        void *coll = enqueue(i, 1 << 20, n % 3 ? "AllReduce" : "ReduceScatter");
        if (!coll) continue;
        while (put - __atomic_load_n(&got, __ATOMIC_ACQUIRE) >= QUEUE) sched_yield();
        queue[put % QUEUE].context = comms[i].context;
        queue[put % QUEUE].coll = coll;
        __atomic_store_n(&put, put + 1, __ATOMIC_RELEASE);
        timed++;
        CHECK(plugin->stopEvent(coll) == 0);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    pthread_join(watcher, NULL);
    finalize_all(COMMS);
}

/* One collective's whole life, then everything that comes too late, twice, or from nowhere. */
static void stale(void) {
    state_args args = {.kernelCh = {99}};
    join(0, 2);
    void *coll = enqueue(0, 1 << 20, "AllGather");
    CHECK(coll);
    void *kernel = start(EVENT_KERNEL_CH, comms[0].context, coll, 1, 0, NULL);
    CHECK(kernel);
    CHECK(!start(EVENT_KERNEL_CH, comms[0].context, coll, 1, 0, NULL)); /* twice */
    CHECK(!start(EVENT_KERNEL_CH, comms[0].context, coll, 1, 200, NULL)); /* no such channel */
    CHECK(!start(EVENT_KERNEL_CH, comms[0].context, NULL, 1, 0, NULL));
    CHECK(!start(EVENT_KERNEL_CH, comms[0].context, kernel, 1, 1, NULL)); /* a kernel is no parent */
    for (int twice = 0; twice < 2; twice++) {
        plugin->recordEventState(kernel, STATE_KERNEL_CH_STOP, &args);
        plugin->stopEvent(kernel);
        plugin->stopEvent(coll);
    }
    plugin->recordEventState(kernel, STATE_KERNEL_CH_STOP, &args); /* after stop */
    plugin->recordEventState(kernel, STATE_KERNEL_CH_STOP, NULL);
    plugin->recordEventState(coll, 3, &args);
    plugin->recordEventState(NULL, STATE_KERNEL_CH_STOP, &args);
    plugin->stopEvent(NULL);
    plugin->stopEvent((void *)~0ul);
    plugin->stopEvent((void *)&args); /* an address is no handle */
    CHECK(!start(EVENT_GROUP, comms[0].context, NULL, 0, 0, NULL));
    CHECK(!start(EVENT_PROXY_OP, comms[0].context, coll, 0, 0, NULL));
    CHECK(!start(EVENT_COLL, NULL, NULL, 0, 1 << 20, "AllReduce"));
    CHECK(!start(EVENT_COLL, (void *)0x1234, NULL, 0, 1 << 20, "AllReduce"));
    CHECK(!enqueue(0, 16, "AllReduce")); /* too short to be of use: told, not timed */
    CHECK(!enqueue(0, 1 << 20, "Broadcast")); /* rooted */
    finalize_all(1);
    abandoned++; /* the one of which a single channel ended */
    CHECK(!start(EVENT_KERNEL_CH, comms[0].context, coll, 1, 5, NULL));
    CHECK(!start(EVENT_COLL, comms[0].context, NULL, 0, 1 << 20, "AllReduce"));
    plugin->finalize(comms[0].context);
    plugin->finalize(NULL);
}

/* One process with two GPUs in communicator 0, which are two of its ranks, and with one in communicator 2. */
static void shared(void) {
    join(0, 4);
    join_as(1, 0xc0117000, 4);
    join(2, 2);
    for (int n = 0; n < 100; n++) {
        CHECK(!enqueue(0, 1 << 20, "AllReduce") && !enqueue(1, 1 << 20, "AllReduce"));
        run_kernel(comms[2].context, enqueue(2, 1 << 20, "AllReduce"), 1000, CHANNELS);
        timed++;
    }
    finalize_all(3);
    join(0, 4); /* alone now */
    run_kernel(comms[0].context, enqueue(0, 1 << 20, "AllReduce"), 1000, CHANNELS);
    timed++;
    finalize_all(1);
}

static void in_order(unsigned long collectives) {
    join(0, 2);
    CHECK(mask & EVENT_COLL);
    for (unsigned long n = 0; n < collectives; n++) {
        void *coll = enqueue(0, 1 << 20, "AllReduce");
        CHECK((coll != NULL) == ((mask & EVENT_KERNEL_CH) != 0));
        if (!coll) continue;
        CHECK(plugin->stopEvent(coll) == 0); /* the host is done long before the GPU */
        run_kernel(comms[0].context, coll, 1000000 * (n + 1), CHANNELS);
        timed++;
    }
    finalize_all(1);
}

/* A group of calls is recorded into a CUDA graph, in the middle. */
static void captured(unsigned long collectives) {
    join(0, 2);
    for (unsigned long n = 0; n < collectives; n++) {
        CHECK(!start(EVENT_GROUP_API, comms[0].context, NULL, n == collectives / 2, 0, NULL));
        void *coll = enqueue(0, 1 << 20, "AllReduce");
        CHECK((coll != NULL) == ((mask & EVENT_KERNEL_CH) != 0));
        if (!coll) continue;
        run_kernel(comms[0].context, coll, 1000000 * (n + 1), CHANNELS);
        timed++;
    }
    finalize_all(1);
}

/* A stage of a pipeline, and an exchange between all. */
static void messages(unsigned long steps) {
    join(0, 4), join(1, 3);
    for (unsigned long n = 0; n < steps; n++) {
        void *received = pass(0, 3, 12, "Recv"), *sent = pass(0, 1, 1 << 20, "Send");
        CHECK(received && sent);
        /* Of a short one not all channels tell. */
        run_kernel(comms[0].context, received, 1000000 * (n + 1), 1);
        run_kernel(comms[0].context, sent, 1000000 * (n + 1), CHANNELS);
        CHECK(!pass(0, 1, 0, "Send")); /* nothing to wait for */
        enqueued += 3, timed += 2;
    }
    CHECK(!pass(0, 2, 1 << 20, "Recv")); /* a third rank: all exchange with all */
    CHECK(!pass(0, 1, 1 << 20, "Recv"));
    CHECK(!pass(1, 0, 1 << 20, "Recv") && !pass(1, 1, 1 << 20, "Recv")); /* with itself: likewise */
    finalize_all(2);
}

static void reload(const char *path) {
    for (int times = 0; times < 100; times++) {
        in_order(10);
        CHECK(dlclose(library) == 0);
        load(path);
    }
}

static void forked(void) {
    in_order(10);
    join(1, 2);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *coll = enqueue(1, 1 << 20, "AllReduce");
        if (coll) run_kernel(comms[1].context, coll, 5, CHANNELS);
        join(2, 2);
        plugin->finalize(comms[1].context);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    void *coll = enqueue(1, 1 << 20, "AllReduce"); /* the parent goes on */
    CHECK(coll);
    run_kernel(comms[1].context, coll, 5, CHANNELS);
    timed++;
    CHECK(plugin->finalize(comms[1].context) == 0);
}

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* A millisecond after another, until the plugin has found itself too costly and takes itself out. */
static void costly(void) {
    double begin = now_ns();
    join(0, 8);
    while (mask && now_ns() < begin + 60e9) {
        void *coll = enqueue(0, 1 << 20, "AllReduce");
        if (coll) run_kernel(comms[0].context, coll, 1000, CHANNELS), timed++;
        usleep(1000);
    }
    CHECK(mask == 0);
    mask = EVENT_COLL | EVENT_KERNEL_CH; /* as by a thread that was about to ask for events at that moment */
    CHECK(!enqueue(0, 1 << 20, "AllReduce") && mask == 0);
    join(1, 8);
    CHECK(!comms[1].context && mask == 0);
    finalize_all(2);
}

static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* A plugin that does nothing: what the harness itself takes. */
static int nothing_starts(void *context, void **handle, void *descr) {
    (void)descr;
    *handle = context;
    return 0;
}
static int nothing_stops(void *handle) { return handle ? 0 : 1; }
static int nothing_changes(void *handle, int state, state_args *args) { return handle && state && args ? 0 : 1; }
static profiler nothing = {"nothing", {NULL}, nothing_starts, nothing_stops, nothing_changes, nothing_stops};

/* A burst as a step makes one, and collectives of it that are timed together: the clock itself takes as long as some
 * callbacks, and of a few the plugin times itself. */
enum { GROUP = 16, GROUPS = 12, BURST = GROUP * GROUPS, SERIES = 4 };

typedef struct {
    const char *name;
    double *ns;
    unsigned long count;
} series;

static void took(series *of, double ns) { of->ns[of->count++] = ns; }

/* What a callback takes: the first after a pause, by groups, and all of the burst; then those of a kernel's channels. */
static void burst(series *all) {
    void *colls[BURST];
    double begin = now_ns(), before = begin;
    for (int n = 0; n < BURST; n++) {
        colls[n] = enqueue(0, 1 << 20, "AllReduce");
        if (n != 0 && (n + 1) % GROUP != 0) continue;
        double now = now_ns();
        if (n == 0) took(&all[2], now - before);
        else if (n >= GROUP) took(&all[0], (now - before) / GROUP);
        before = now;
    }
    took(&all[1], (before - begin) / BURST);
    for (int n = 0; n < BURST; n++) run_kernel(comms[0].context, colls[n], 1000, CHANNELS);
    took(&all[3], (now_ns() - before) / (BURST * CHANNELS * 3));
}

/* Medians, of the plugin and in turn of one that does nothing. A burst's mean is mostly what else the machine does: one
 * interruption is as long as a hundred callbacks. */
static void bench(unsigned long bursts) {
    static series all[2][SERIES] = {
        {{"enqueue", 0, 0}, {"burst", 0, 0}, {"first", 0, 0}, {"kernel", 0, 0}},
        {{"enqueue_nothing", 0, 0}, {"burst_nothing", 0, 0}, {"first_nothing", 0, 0}, {"kernel_nothing", 0, 0}},
    };
    profiler *real = plugin;
    for (int i = 0; i < 2 * SERIES; i++) {
        all[i / SERIES][i % SERIES].ns = malloc(bursts * GROUPS * sizeof(double));
        CHECK(bursts > 0 && all[i / SERIES][i % SERIES].ns);
    }
    join(0, 8);
    for (unsigned long b = 0; b < bursts; b++) {
        for (int i = 0; i < 2; i++) {
            plugin = i ? &nothing : real;
            usleep(2000); /* a reader comes by */
            burst(all[i]);
        }
        timed += BURST;
    }
    plugin = real;
    for (int i = 0; i < 2 * SERIES; i++) {
        series *of = &all[i / SERIES][i % SERIES];
        qsort(of->ns, of->count, sizeof(double), by_size);
        printf("%s_ns=%.1f %s_p99_ns=%.1f ", of->name, of->ns[of->count / 2], of->name, of->ns[of->count * 99 / 100]);
        free(of->ns);
    }
    finalize_all(1);
}

/* One rank of a job that meets in every collective, each after some work of its own. What every rank works in every step
 * follows from a hash, so that each knows when the others come, and nobody has to ask. */
static double work_ns(int rank, int slow, unsigned long step, int part, double factor) {
    uint64_t mix = (uint64_t)rank * 1000003 + step * 7919 + (uint64_t)part * 104729 + 1;
    mix = (mix ^ (mix >> 31)) * 0x9e3779b97f4a7c15, mix = (mix ^ (mix >> 29)) * 0xbf58476d1ce4e5b9, mix ^= mix >> 32;
    return 2e6 * (0.98 + 0.04 * (double)(mix % 1000) / 1000) * (rank == slow ? factor : 1);
}

static void train(unsigned long steps, int ranks, int slow, double factor) {
    const char *said = getenv("RANK");
    enum { PARTS = 5 };
    const size_t floats[PARTS] = {1 << 18, 1 << 18, 1 << 19, 1 << 18, 1 << 20};
    int me = said ? atoi(said) : 0;
    double met = 0, begin = now_ns();
    uint64_t clock = 1000000000000000ull * (uint64_t)(me + 1); /* no two GPUs' clocks agree */
    join(0, ranks);
    for (int n = 0; n < 3; n++) enqueue(0, 1 << 22, "Broadcast"); /* what is done before the first step */
    for (unsigned long step = 0; step < steps; step++) {
        for (int part = 0; part < PARTS; part++) {
            double mine = met + work_ns(me, slow, step, part, factor), last = 0;
            for (int r = 0; r < ranks; r++) {
                double came = met + work_ns(r, slow, step, part, factor);
                if (came > last) last = came;
            }
            met = last + 300e3; /* the transfer */
            double ahead = begin + mine - now_ns();
            if (ahead > 0) usleep((useconds_t)(ahead / 1e3));
            void *coll = enqueue(0, floats[part], "AllReduce");
            if (!coll) continue;
            for (int c = 0; c < CHANNELS; c++) {
                void *kernel = start(EVENT_KERNEL_CH, comms[0].context, coll, clock + (uint64_t)mine, (size_t)c, NULL);
                state_args args = {.kernelCh = {clock + (uint64_t)met}};
                CHECK(plugin->recordEventState(kernel, STATE_KERNEL_CH_STOP, &args) == 0);
                CHECK(plugin->stopEvent(kernel) == 0);
            }
            timed++;
        }
        enqueue(0, 1, "AllReduce"); /* the loss */
    }
    finalize_all(1);
}

int main(int count, char **words) {
    CHECK(count >= 4);
    version = atoi(words[2]);
    const char *scenario = words[3];
    unsigned long collectives = count > 4 ? strtoul(words[4], NULL, 10) : 0;
    load(words[1]);
    if (!strcmp(scenario, "order")) in_order(collectives);
    else if (!strcmp(scenario, "captured")) captured(collectives);
    else if (!strcmp(scenario, "storm")) storm(collectives);
    else if (!strcmp(scenario, "stale")) stale();
    else if (!strcmp(scenario, "reload")) reload(words[1]);
    else if (!strcmp(scenario, "fork")) forked();
    else if (!strcmp(scenario, "shared")) shared();
    else if (!strcmp(scenario, "messages")) messages(collectives);
    else if (!strcmp(scenario, "costly")) costly();
    else if (!strcmp(scenario, "bench")) bench(collectives);
    else if (!strcmp(scenario, "train") && count > 7) train(collectives, atoi(words[5]), atoi(words[6]), atof(words[7]));
    else CHECK(!"a scenario of that name");
    printf("pid=%d enqueued=%lu timed=%lu abandoned=%lu mask=%d\n", (int)getpid(), enqueued, timed, abandoned, mask);
    return 0;
}
