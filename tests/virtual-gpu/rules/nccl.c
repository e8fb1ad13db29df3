/* The virtual NCCL: two ranks, each a process of this program with a test's name, its rank and the
 * communicator's id. Without arguments: all tests. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define event recorded_event
#include "recorder.h"
#undef event
#include "../src/nccl_abi.h"
#include "check.h"

ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommCount(const ncclComm_t, int *);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclAllGather(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclReduceScatter(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                               cudaStream_t);
ncclResult_t ncclSend(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);

#define LONG 50000000 /* bytes: 500 us and 20 of latency by 100 GB/s, all-reduced by two */

static ncclComm_t comm;
static cudaStream_t stream;
static float *data;
static int rank;

static void settle(void) {
    OK(cudaStreamSynchronize(stream));
    struct timespec proxy = {0, 30000000};
    nanosleep(&proxy, NULL);
}

static void all_reduce(size_t bytes) {
    HOLDS(!ncclAllReduce(data, data, bytes / 4, ncclFloat32, ncclSum, comm, stream));
}

static void put(int count, const float *values) {
    OK(cudaMemcpyAsync(data, values, (size_t)count * 4, cudaMemcpyHostToDevice, stream));
}

static float value(int at) {
    float copied;
    OK(cudaMemcpyAsync(&copied, data + at, 4, cudaMemcpyDeviceToHost, stream));
    return copied;
}

static void small_data_is_exchanged(void) {
    float own[] = {1 + (float)rank, 10 + (float)rank};
    put(2, own);
    all_reduce(8);
    HOLDS(value(0) == 3 && value(1) == 21);
    put(2, own);
    HOLDS(!ncclReduceScatter(data, data + 4, 1, ncclFloat32, ncclMax, comm, stream));
    HOLDS(value(4) == (rank ? 11 : 2));
    HOLDS(!ncclAllGather(data + 4, data, 1, ncclFloat32, comm, stream));
    HOLDS(value(0) == 2 && value(1) == 11);
}

static void messages_pass(void) {
    float own[] = {(float)rank};
    put(1, own);
    for (int i = 0; i < 20; i++) {
        ncclGroupStart();
        HOLDS(!ncclSend(data, 1, ncclFloat32, !rank, comm, stream));
        HOLDS(!ncclRecv(data + 1, 1, ncclFloat32, !rank, comm, stream));
        ncclGroupEnd();
    }
    HOLDS(value(1) == (float)!rank);
}

static void a_communicator_splits(void) {
    ncclComm_t half, none;
    int ranks;
    HOLDS(!ncclCommSplit(comm, rank, 0, &half, NULL));
    HOLDS(!ncclCommCount(half, &ranks) && ranks == 1);
    HOLDS(!ncclCommSplit(comm, rank ? -1 : 0, 0, &none, NULL));
    HOLDS((none == NULL) == (rank == 1));
}

/* The last to come decides when it begins; it ends for all at the same time. */
static void a_collective_waits_for_all(void) {
    cudaEvent_t from = recorded(stream);
    OK(work(stream, rank ? 20 : 5));
    all_reduce(LONG);
    cudaEvent_t to = recorded(stream);
    OK(cudaEventSynchronize(to));
    if (rank) NEAR(20.52, ms_between(from, to));
    if (!rank) HOLDS(ms_between(from, to) > 15);
}

static void an_abort_ends_what_waits(void) {
    if (rank) {
        settle();
        return;
    }
    all_reduce(4);
    cudaEvent_t to = recorded(stream);
    usleep(50000);
    GIVES(cudaErrorNotReady, cudaEventQuery(to));
    HOLDS(!ncclCommAbort(comm));
    OK(cudaEventSynchronize(to));
}

static ncclComm_t lone;

static void *join_alone(void *result) {
    ncclUniqueId id = {0};
    snprintf(id.internal, sizeof id.internal, "/vgpu-lone-%d", getpid());
    *(ncclResult_t *)result = ncclCommInitRank(&lone, 2, id, 0);
    return NULL;
}

/* Joining blocks while a member is missing. NCCL writes the handle before, so another thread can abort. */
static void an_abort_ends_joining(void) {
    pthread_t thread;
    ncclResult_t result = ncclSuccess;
    HOLDS(!pthread_create(&thread, NULL, join_alone, &result));
    for (int i = 0; i < 2000 && !__atomic_load_n(&lone, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    usleep(20000);
    HOLDS(pthread_tryjoin_np(thread, NULL) == EBUSY);
    HOLDS(!ncclCommAbort(lone));
    HOLDS(!pthread_join(thread, NULL));
    HOLDS(result == ncclInternalError);
}

static void a_dead_member_is_an_error(void) {
    ncclResult_t error = ncclSuccess;
    if (rank) _exit(0);
    all_reduce(4);
    for (int i = 0; i < 200 && error == ncclSuccess; i++) {
        usleep(10000);
        HOLDS(!ncclCommGetAsyncError(comm, &error));
    }
    HOLDS(error == ncclRemoteError);
    _exit(0);
}

static void a_slow_link(void) {
    all_reduce(4);
    cudaEvent_t from = recorded(stream);
    all_reduce(LONG);
    cudaEvent_t to = recorded(stream);
    OK(cudaEventSynchronize(to));
    HOLDS(ms_between(from, to) > 2.0 && ms_between(from, to) < 2.5);
}

/* What the plugin recorded. */
static recording *plugin_recording(void) {
    return dlsym(dlopen(getenv("NCCL_PROFILER_PLUGIN"), RTLD_NOW), "recorded");
}

/* ms of the nth timed collective by its channels; -1 without times. */
static double timed_ms(const recording *r, int n) {
    for (int i = 0; i < r->count; i++) {
        if (r->events[i].type != EVENT_COLL || n--) continue;
        for (int k = i; k < r->count; k++)
            if (r->events[k].parent == &r->events[i])
                return (double)(r->events[k].stop - r->events[k].start) / 1e6;
        return -1;
    }
    return -2;
}

static void the_last_to_come_has_the_shortest_time(void) {
    const recording *r = plugin_recording();
    OK(work(stream, rank ? 100 : 1));
    all_reduce(LONG);
    settle();
    HOLDS(r->interface == 5);
    const recorded_event *first = &r->events[0];
    HOLDS(first->type == EVENT_COLL && !strcmp(first->func, "AllReduce") && first->count == LONG / 4);
    HOLDS(first->sequence == 0 && first->is_stopped);
    if (rank) NEAR(0.52, timed_ms(r, 0));
    if (!rank) HOLDS(timed_ms(r, 0) > 15);
}

static void messages_are_recorded(void) {
    const recording *r = plugin_recording();
    int sends = 0, receives = 0;
    ncclGroupStart();
    HOLDS(!ncclSend(data, 7, ncclFloat32, !rank, comm, stream));
    HOLDS(!ncclRecv(data + 7, 7, ncclFloat32, !rank, comm, stream));
    ncclGroupEnd();
    settle();
    for (int i = 0; i < r->count; i++) {
        if (r->events[i].type != EVENT_P2P) continue;
        HOLDS(r->events[i].peer == !rank && r->events[i].count == 7 && r->events[i].is_stopped);
        sends += !strcmp(r->events[i].func, "Send");
        receives += !strcmp(r->events[i].func, "Recv");
    }
    HOLDS(sends == 1 && receives == 1);
    HOLDS(!ncclCommDestroy(comm) && r->finalized == 1);
}

/* Channels that reported times of the last message, of so many bytes. */
static int channels_told(size_t bytes) {
    const recording *r = plugin_recording();
    int from = r->count, reported = 0;
    if (rank) HOLDS(!ncclSend(data, bytes, ncclInt8, 0, comm, stream));
    if (!rank) HOLDS(!ncclRecv(data, bytes, ncclInt8, 1, comm, stream));
    settle();
    for (int i = from; i < r->count; i++)
        reported += r->events[i].type == EVENT_KERNEL_CH;
    return reported;
}

/* All say that they have four (NCCL's issue 2056). */
static void up_to_2_30_short_messages_tell_of_one_channel(void) {
    HOLDS(channels_told(24) == 1 && channels_told(1 << 20) == 4);
}

static void since_2_31_messages_tell_of_all_channels(void) {
    HOLDS(channels_told(24) == 4);
}

/* NCCL before 2.27 looks for older interfaces than a plugin of 4 to 7 has. */
static void up_to_2_26_no_plugin_is_loaded(void) {
    all_reduce(4);
    settle();
    HOLDS(!plugin_recording()->interface && !plugin_recording()->count);
}

static void in_2_27_a_plugin_is_called_by_interface_4(void) {
    HOLDS(plugin_recording()->interface == 4);
}

/* One long collective that is not timed, then a short one that is. */
static double short_after_untimed_long(void) {
    recording *r = plugin_recording();
    *r->mask = EVENT_COLL;
    all_reduce(LONG);
    *r->mask = EVENT_COLL | EVENT_KERNEL_CH;
    all_reduce(4);
    settle();
    return timed_ms(r, 1);
}

static void up_to_2_30_windows_are_right(void) {
    HOLDS(short_after_untimed_long() < 0.4);
}

/* Since 2.31 the device counts works that the host does not: the short one is said to be as long as the one
 * before. */
static void since_2_31_windows_are_foreign(void) {
    double ms = short_after_untimed_long();
    HOLDS(plugin_recording()->interface == 7);
    HOLDS(ms > 0.45);
}

/* A graph that was captured while nothing was timed moves the device's count at each replay (NCCL pull
 * request 2368). */
static void replays_make_times_foreign(void) {
    recording *r = plugin_recording();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    *r->mask = EVENT_COLL | EVENT_COLL_API;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    all_reduce(LONG);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, stream));
    *r->mask = EVENT_COLL | EVENT_KERNEL_CH;
    all_reduce(4);
    settle();
    int captured = 0, colls = 0;
    for (int i = 0; i < r->count; i++) {
        captured += r->events[i].is_captured;
        colls += r->events[i].type == EVENT_COLL;
    }
    HOLDS(captured == 1);
    HOLDS(timed_ms(r, colls - 1) > 0.45);
}

static const struct {
    const char *name, *variable, *setting;
    void (*test)(void);
} tests[] = {
#define TEST(test, variable, value) {#test, variable, value, test}
    TEST(small_data_is_exchanged, "", ""),
    TEST(messages_pass, "", ""),
    TEST(a_communicator_splits, "", ""),
    TEST(a_collective_waits_for_all, "", ""),
    TEST(an_abort_ends_what_waits, "", ""),
    TEST(an_abort_ends_joining, "", ""),
    TEST(a_dead_member_is_an_error, "VGPU_NCCL_DEAD_PEER", "error"),
    TEST(a_slow_link, "VGPU_LINK", "1:4"),
    TEST(the_last_to_come_has_the_shortest_time, "", ""),
    TEST(messages_are_recorded, "", ""),
    TEST(up_to_2_30_short_messages_tell_of_one_channel, "", ""),
    TEST(since_2_31_messages_tell_of_all_channels, "VGPU_NCCL_VERSION", "23102"),
    TEST(up_to_2_26_no_plugin_is_loaded, "VGPU_NCCL_VERSION", "22602"),
    TEST(in_2_27_a_plugin_is_called_by_interface_4, "VGPU_NCCL_VERSION", "22703"),
    TEST(up_to_2_30_windows_are_right, "", ""),
    TEST(since_2_31_windows_are_foreign, "VGPU_NCCL_VERSION", "23102"),
    TEST(replays_make_times_foreign, "", ""),
};

static void run_rank(const char *name, const char *id_text) {
    ncclUniqueId id = {0};
    snprintf(id.internal, sizeof id.internal, "%s", id_text);
    OK(cudaSetDevice(rank));
    stream = non_blocking();
    OK(cudaMalloc((void **)&data, LONG));
    HOLDS(!ncclCommInitRank(&comm, 2, id, rank));
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(tests[i].name, name)) tests[i].test();
    _exit(0);
}

static int run_test(const char *program, size_t at) {
    char id[64], rank_text[8];
    int failed = 0, status;
    snprintf(id, sizeof id, "/vgpu-rules-%d-%zu", getpid(), at);
    for (int i = 0; i < 2; i++) {
        if (fork()) continue;
        snprintf(rank_text, sizeof rank_text, "%d", i);
        setenv("RANK", rank_text, 1);
        if (*tests[at].variable) setenv(tests[at].variable, tests[at].setting, 1);
        execl(program, program, tests[at].name, rank_text, id, NULL);
        _exit(127);
    }
    while (wait(&status) > 0)
        failed |= status;
    if (failed) fprintf(stderr, "%s failed\n", tests[at].name);
    return failed != 0;
}

int main(int count, char **arguments) {
    int failed = 0;
    if (count == 4) {
        rank = atoi(arguments[2]);
        run_rank(arguments[1], arguments[3]);
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        failed |= run_test("/proc/self/exe", i);
    return failed;
}
