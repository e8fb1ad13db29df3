/* Order and times: within a stream, between streams, on the legacy default stream, of copies and host
 * functions. */
#include <stdint.h>
#include <time.h>

#include "check.h"

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void work_is_done_in_order_and_later(void) {
    cudaStream_t stream = non_blocking();
    cudaEvent_t from = recorded(stream);
    double before = now_ms();
    OK(work(stream, 20));
    OK(work(stream, 10));
    cudaEvent_t to = recorded(stream);
    HOLDS(now_ms() - before < 10); /* the host does not wait */
    GIVES(cudaErrorNotReady, cudaEventQuery(to));
    GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
    float ms;
    GIVES(cudaErrorNotReady, cudaEventElapsedTime(&ms, from, to));
    OK(cudaEventSynchronize(to));
    OK(cudaEventQuery(to));
    OK(cudaStreamQuery(stream));
    NEAR(30, ms_between(from, to));
    HOLDS(now_ms() - before >= 29);
}

static void streams_run_beside_each_other(void) {
    cudaStream_t one = non_blocking(), two = non_blocking();
    cudaEvent_t from = recorded(one);
    OK(work(one, 10));
    OK(work(two, 10));
    OK(cudaStreamWaitEvent(one, recorded(two), 0));
    cudaEvent_t to = recorded(one);
    OK(cudaDeviceSynchronize());
    NEAR(10, ms_between(from, to));
}

/* cudaStreamWaitEvent: "makes all future work submitted to stream wait for all work captured in event". */
static void a_stream_waits_for_an_event(void) {
    cudaStream_t one = non_blocking(), two = non_blocking();
    cudaEvent_t from = recorded(one), first = event();
    OK(work(one, 8));
    OK(cudaEventRecord(first, one));
    OK(cudaStreamWaitEvent(two, first, 0));
    OK(cudaEventRecord(first, one)); /* the wait is for what was recorded then */
    OK(work(one, 50));
    OK(work(two, 4));
    cudaEvent_t to = recorded(two);
    OK(cudaEventSynchronize(to));
    NEAR(12, ms_between(from, to));
    OK(cudaStreamWaitEvent(two, event(), 0)); /* never recorded: "a no-op" */
    OK(cudaStreamQuery(two));
    OK(cudaDeviceSynchronize());
}

/* "The legacy default stream [...] synchronizes with all other streams in the same CUcontext except for
 * non-blocking streams": what it is given waits for theirs, and theirs for it. */
static void the_legacy_stream_waits_and_is_waited_for(void) {
    cudaStream_t one = blocking(), two = blocking(), free_one = non_blocking();
    cudaEvent_t from = recorded(free_one);
    OK(work(one, 10));
    OK(work(NULL, 5)); /* after the first stream's */
    OK(work(two, 3));  /* after that */
    cudaEvent_t to = recorded(two);
    OK(work(free_one, 1));
    cudaEvent_t beside = recorded(free_one);
    OK(cudaDeviceSynchronize());
    NEAR(18, ms_between(from, to));
    NEAR(1, ms_between(from, beside));
    from = recorded(NULL);
    OK(work(cudaStreamPerThread, 4)); /* "the per-thread default stream is not a non-blocking stream" */
    to = recorded(NULL);
    OK(cudaEventSynchronize(to));
    NEAR(4, ms_between(from, to));
}

/* "For transfers from device memory to pageable host memory, the function will return only once the copy has
 * completed"; to pinned memory "the function is asynchronous" (CUDA Runtime API, "API synchronization
 * behavior"). */
static void copies(void) {
    cudaStream_t stream = non_blocking();
    void *device, *pinned;
    int value = 7, back = 0;
    OK(cudaMalloc(&device, 1 << 20));
    OK(cudaMallocHost(&pinned, 1 << 20));
    OK(work(stream, 5));
    OK(cudaMemcpyAsync(device, &value, sizeof value, cudaMemcpyHostToDevice, stream));
    value = 8; /* pageable memory was taken when it was called */
    OK(cudaMemcpyAsync(pinned, device, sizeof value, cudaMemcpyDeviceToHost, stream));
    GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
    OK(cudaMemcpyAsync(&back, device, sizeof value, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamQuery(stream));
    HOLDS(back == 7 && *(int *)pinned == 7);
    cudaEvent_t from = recorded(stream);
    OK(cudaMemcpyAsync(device, pinned, 100000000, cudaMemcpyHostToDevice,
                       stream)); /* 50 GB/s; too long to be made */
    cudaEvent_t to = recorded(stream);
    OK(cudaEventSynchronize(to));
    NEAR(2, ms_between(from, to));
}

/* cudaLaunchHostFunc: "the function will be called after currently enqueued work and will block work added
 * after it". */
static void sleep_20_ms(void *done) {
    struct timespec duration = {0, 20000000};
    nanosleep(&duration, NULL);
    *(volatile int *)done = 1;
}

static void host_functions(void) {
    cudaStream_t stream = non_blocking();
    volatile int done = 0;
    cudaEvent_t from = recorded(stream);
    OK(work(stream, 5));
    OK(cudaLaunchHostFunc(stream, sleep_20_ms, (void *)(uintptr_t)&done));
    cudaEvent_t to = recorded(stream);
    HOLDS(!done);
    OK(cudaEventSynchronize(to));
    HOLDS(done);
    HOLDS(ms_between(from, to) >= 25);
}

int main(void) {
    work_is_done_in_order_and_later();
    streams_run_beside_each_other();
    a_stream_waits_for_an_event();
    the_legacy_stream_waits_and_is_waited_for();
    copies();
    host_functions();
    return 0;
}
