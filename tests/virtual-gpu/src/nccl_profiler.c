/* The profiler plugin, called as NCCL calls it: version 4 of the interface in NCCL 2.27, 5 in 2.28, 6 in 2.29
 * and 2.30, 7 since 2.31 (VGPU_NCCL_VERSION), or the newest below that the plugin has. NCCL before 2.27 has
 * older interfaces alone, which Paceline's plugin does not: there no plugin is loaded.
 *
 * What goes wrong in NCCL goes wrong here: a device counts the works that it times and the host those that it
 * asked for. Where the two differ, times are foreign, or never come (NCCL's src/device/common.h and
 * src/proxy.cc; pull requests 2368 and 2369): a graph captured while nothing was timed counts on the device
 * at each replay; and since 2.31 the device counts every work, the host only those that it times. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../nccl-harness/nccl_profiler.h"
#include "nccl_fake.h"

#define CHANNELS 4
#define CHUNK ((size_t)128 << 10) /* NCCL_P2P_NVL_CHUNKSIZE is 512 KiB on NVLink, NCCL_P2P_NET_CHUNKSIZE 128 KiB */
#define OLDEST_INTERFACE 4
#define TASKS (EVENT_COLL | EVENT_P2P | EVENT_PROXY_OP | EVENT_PROXY_STEP | EVENT_KERNEL_CH)

static profiler *plugin;
static int interface,
    mask; /* NCCL has one mask for all communicators, which the plugin may change at any time */
static pthread_once_t plugin_once = PTHREAD_ONCE_INIT;

/* Times that the host is told later, by the order of their ends. */
typedef struct report {
    struct report *next;
    void *context, *parent;
    ns_t start, end;
    int channels; /* that have any */
} report;
static report *reports;
static pthread_mutex_t reports_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reports_there = PTHREAD_COND_INITIALIZER;

static const char *const type_names[ncclNumTypes] = {
    "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
    "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

int nccl_version(void) {
    static int version;
    if (!version) version = (int)vgpu_number("VGPU_NCCL_VERSION", NCCL_PLAYED);
    return version;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = nccl_version();
    return ncclSuccess;
}

static void tell_times(const report *r) {
    void *handles[CHANNELS] = {0};
    for (int channel = 0; channel < r->channels; channel++) {
        /* The layout of kernelCh is the same in all versions; version 4's type is one byte, the first of
         * eight. */
        descr_v7 d = {.type = EVENT_KERNEL_CH, .parentObj = r->parent};
        d.kernelCh.channelId = (uint8_t)channel;
        d.kernelCh.pTimer = (uint64_t)r->start;
        plugin->startEvent(r->context, &handles[channel], &d);
    }
    for (int channel = 0; channel < CHANNELS; channel++) {
        if (!handles[channel]) continue;
        state_args arguments = {.kernelCh = {(uint64_t)r->end}};
        plugin->recordEventState(handles[channel], STATE_KERNEL_CH_STOP, &arguments);
        plugin->stopEvent(handles[channel]);
    }
}

/* NCCL's proxy thread, or since 2.31 its profiler's own: tells of kernels when they have run. */
static void *proxy(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "vgpu-proxy");
    for (;;) {
        pthread_mutex_lock(&reports_lock);
        while (!reports)
            pthread_cond_wait(&reports_there, &reports_lock);
        ns_t end = reports->end;
        pthread_mutex_unlock(&reports_lock);
        if (end > vgpu_now()) vgpu_sleep_until(end);
        pthread_mutex_lock(&reports_lock);
        report *first = reports;
        reports = first->next;
        pthread_mutex_unlock(&reports_lock);
        tell_times(first);
        free(first);
    }
    return NULL;
}

static void report_later(void *context, void *parent, ns_t start, ns_t end, int channels) {
    report *made = malloc(sizeof *made), **at = &reports;
    *made = (report){NULL, context, parent, start, end, channels};
    pthread_mutex_lock(&reports_lock);
    while (*at && (*at)->end <= end)
        at = &(*at)->next;
    made->next = *at;
    *at = made;
    pthread_cond_signal(&reports_there);
    pthread_mutex_unlock(&reports_lock);
}

/* 0 before NCCL 2.27, whose older interfaces are not played. */
static int newest_interface(void) {
    static const struct {
        int nccl, interface;
    } since[] = {{23100, 7}, {22900, 6}, {22800, 5}, {22700, 4}};
    for (size_t i = 0; i < sizeof since / sizeof *since; i++)
        if (nccl_version() >= since[i].nccl) return since[i].interface;
    return 0;
}

static void load_plugin(void) {
    const char *path = getenv("NCCL_PROFILER_PLUGIN");
    char symbol[32];
    if (!path || !*path || !strcmp(path, "none")) return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "virtual NCCL: profiler plugin: %s\n", dlerror());
        return;
    }
    int newest = newest_interface();
    for (int version = newest; version >= OLDEST_INTERFACE && !plugin; version--) {
        snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
        plugin = dlsym(library, symbol);
        interface = version;
    }
    if (!plugin) return;
    if (getenv("VGPU_TRACE"))
        fprintf(stderr, "virtual NCCL: profiler %s by interface v%d\n", plugin->name, interface);
    pthread_t thread;
    pthread_create(&thread, NULL, proxy, NULL);
    pthread_detach(thread);
}

static void no_log(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    (void)level, (void)flags, (void)file, (void)line, (void)format;
}

void profiler_join(comm *c, const char *label) {
    pthread_once(&plugin_once, load_plugin);
    if (!plugin) return;
    if (interface == 4)
        plugin->init.v4(&c->profiler, &mask, label, c->hash, 1, c->ranks, c->rank, no_log);
    else
        plugin->init.v5(&c->profiler, c->hash, &mask, label, 1, c->ranks, c->rank, no_log);
}

void profiler_leave(comm *c) {
    if (plugin && c->profiler) plugin->finalize(c->profiler);
    c->profiler = NULL;
}

int profiler_mask(const comm *c) {
    return plugin && c->profiler ? __atomic_load_n(&mask, __ATOMIC_RELAXED) : 0;
}

/* What the program called, since version 5. */
void profiler_api(description *d, cudaStream_t stream) {
    void *call = NULL;
    comm *c = d->comm;
    d->group_event = NULL;
    if (interface < 5 || !(profiler_mask(c) & (EVENT_GROUP_API | EVENT_COLL_API | EVENT_P2P_API))) return;
    descr_v7 group = {.type = EVENT_GROUP_API, .rank = c->rank};
    group.groupApi.graphCaptured = d->is_captured;
    plugin->startEvent(c->profiler, &d->group_event, &group);
    descr_v7 one = {.type = d->kind == P2P ? EVENT_P2P_API : EVENT_COLL_API,
                    .parentObj = d->group_event,
                    .rank = c->rank};
    if (d->kind == P2P) {
        one.p2pApi.func = d->legs->is_send ? "Send" : "Recv";
        one.p2pApi.count = d->legs->count;
        one.p2pApi.datatype = type_names[d->legs->type];
        one.p2pApi.stream = stream;
        one.p2pApi.graphCaptured = d->is_captured;
    } else {
        one.collApi.func = kind_names[d->kind];
        one.collApi.count = d->count;
        one.collApi.datatype = type_names[d->type];
        one.collApi.root = d->root;
        one.collApi.stream = stream;
        one.collApi.graphCaptured = d->is_captured;
    }
    plugin->startEvent(c->profiler, &call, &one);
    if (call) plugin->stopEvent(call);
}

void profiler_api_end(void *group_event) {
    if (group_event) plugin->stopEvent(group_event);
}

static void start_coll(const description *d, void **handle) {
    const comm *c = d->comm;
    descr_v7 e = {.type = EVENT_COLL, .parentObj = d->is_captured ? NULL : d->group_event, .rank = c->rank};
    e.coll.seqNumber = c->sequence_of[d->kind];
    e.coll.func = kind_names[d->kind];
    e.coll.sendBuff = d->send;
    e.coll.recvBuff = d->receive;
    e.coll.count = d->count;
    e.coll.root = d->root;
    e.coll.datatype = type_names[d->type];
    e.coll.nChannels = CHANNELS;
    e.coll.nWarps = 17;
    e.coll.algo = "RING";
    e.coll.proto = "SIMPLE";
    plugin->startEvent(c->profiler, handle, &e);
    if (*handle) plugin->stopEvent(*handle);
}

static void start_leg(const description *d, const leg *l, void **handle) {
    descr_v7 e = {
        .type = EVENT_P2P, .parentObj = d->is_captured ? NULL : d->group_event, .rank = d->comm->rank};
    e.p2p.func = l->is_send ? "Send" : "Recv";
    e.p2p.buff = l->buffer;
    e.p2p.datatype = type_names[l->type];
    e.p2p.count = l->count;
    e.p2p.peer = l->peer;
    e.p2p.nChannels = CHANNELS;
    plugin->startEvent(d->comm->profiler, handle, &e);
    if (*handle) plugin->stopEvent(*handle);
}

/* The work of a launch: whether host and device count it. */
static void count_work(flight *f, comm *c) {
    int timed_at_capture = f->of->captured_mask & EVENT_KERNEL_CH;
    c->device_works++;
    if (f->graph_launch ? timed_at_capture : f->is_timed || nccl_version() < 23100) c->host_works++;
    f->work = c->device_works;
    f->behind = c->device_works - c->host_works;
}

void profiler_enqueue(flight *f) {
    const description *d = f->of;
    comm *c = d->comm;
    int wanted = f->graph_launch ? d->captured_mask : profiler_mask(c);
    int count = d->kind == P2P ? d->leg_count : 1;
    /* "Graph-captured collectives [...] are not included in our counts. An exception is made if
     * ncclProfileKernelCh profiler events are active" (NCCL's src/misc/profiler.cc). */
    int is_counted = !f->graph_launch || wanted & EVENT_KERNEL_CH;
    f->is_timed = (wanted & EVENT_KERNEL_CH) != 0;
    count_work(f, c);
    f->events = calloc((size_t)count, sizeof *f->events);
    if (wanted & TASKS & (d->kind == P2P ? ~EVENT_COLL : ~EVENT_P2P)) {
        if (d->kind == P2P)
            for (int i = 0; i < count; i++)
                start_leg(d, &d->legs[i], &f->events[i]);
        else
            start_coll(d, &f->events[0]);
    }
    if (d->kind != P2P && is_counted) c->sequence_of[d->kind]++;
}

void profiler_finish(flight *f, ns_t end) {
    comm *c = f->of->comm;
    int count = f->of->kind == P2P ? f->of->leg_count : 1;
    c->times[f->work % TIMED].start = f->start;
    c->times[f->work % TIMED].end = end;
    if (!f->is_timed || !c->profiler || f->behind >= TIMED)
        return; /* its times are overwritten: they never come */
    int64_t seen = (f->work - f->behind) % TIMED;
    for (int i = 0; i < count; i++) {
        /* Up to NCCL 2.30 a message says more channels than tell their times, if it is short (NCCL's issue 2056). */
        int is_short = f->of->kind == P2P && f->of->legs[i].bytes < CHANNELS * CHUNK && nccl_version() < 23100;
        if (f->events[i])
            report_later(c->profiler, f->events[i], c->times[seen].start, c->times[seen].end,
                         is_short ? 1 : CHANNELS);
    }
}
