/* What may not be done while a stream captures, and what is done to a capture by it. [guide] CUDA C++
 * Programming Guide, "Creating a Graph Using Stream Capture"; others are functions of the CUDA Runtime API.
 */
#include <pthread.h>

#include "check.h"

static enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

static cudaStream_t capturing(void) {
    cudaStream_t stream = non_blocking();
    OK(cudaStreamBeginCapture(stream, mode));
    return stream;
}

static void ends_with(cudaError_t expected, cudaStream_t stream) {
    cudaGraph_t graph;
    GIVES(expected, cudaStreamEndCapture(stream, &graph));
    HOLDS((graph != NULL) == (expected == cudaSuccess));
}

/* "When an invalid operation is attempted during stream capture, any associated capture graphs are
 * invalidated" [guide]. */
static void is_invalidated(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    HOLDS(status == cudaStreamCaptureStatusInvalidated);
    GIVES(cudaErrorStreamCaptureInvalidated,
          work(stream, 1)); /* "further use of any streams [...] is invalid" */
    ends_with(cudaErrorStreamCaptureInvalidated, stream);
    OK(work(stream, 1)); /* "This call will take the associated streams out of capture mode" */
}

/* cudaStreamBeginCapture: "all operations pushed into the stream will not be executed, but will instead be
 * captured". */
static void work_is_recorded_and_not_done(void) {
    cudaStream_t stream = capturing();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    size_t nodes = 0;
    OK(work(stream, 3));
    OK(work(stream, 4));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaStreamQuery(stream));
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    HOLDS(nodes == 2);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 2; replay++) {
        cudaEvent_t from = recorded(stream);
        OK(cudaGraphLaunch(executable, stream));
        cudaEvent_t to = recorded(stream);
        OK(cudaEventSynchronize(to));
        NEAR(7, ms_between(from, to));
    }
}

/* "It is invalid to synchronize or query the execution status of a stream which is being captured" [guide].
 */
static void a_capturing_stream_is_not_asked(void) {
    cudaStream_t stream = capturing();
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(stream));
    is_invalidated(stream);
    stream = capturing();
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    is_invalidated(stream);
    mode = cudaStreamCaptureModeRelaxed; /* not a matter of modes */
    stream = capturing();
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    is_invalidated(stream);
    mode = cudaStreamCaptureModeGlobal;
}

/* "... or a captured event" [guide]; cudaThreadExchangeStreamCaptureMode: in whatever mode. */
static void a_captured_event_is_not_asked(void) {
    cudaEvent_t captured;
    mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t stream = capturing();
    captured = recorded(stream);
    GIVES(cudaErrorCapturedEvent, cudaEventQuery(captured));
    is_invalidated(stream);
    stream = capturing();
    captured = recorded(stream);
    GIVES(cudaErrorCapturedEvent, cudaEventSynchronize(captured));
    is_invalidated(stream);
    mode = cudaStreamCaptureModeGlobal;
    float ms; /* after the capture it still has no time */
    GIVES(cudaErrorCapturedEvent, cudaEventElapsedTime(&ms, captured, recorded(stream)));
}

/* "It is also invalid to query the execution status of or synchronize a broader handle which encompasses an
 * active stream capture, such as a device" [guide]. */
static void a_device_is_not_waited_for(void) {
    for (int is_relaxed = 0; is_relaxed < 2; is_relaxed++) { /* in whatever mode */
        mode = is_relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
        cudaStream_t stream = capturing();
        GIVES(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
        is_invalidated(stream);
    }
    mode = cudaStreamCaptureModeGlobal;
}

/* cudaThreadExchangeStreamCaptureMode, of calls that may be unsafe: a query of an event that was recorded
 * before is one, a cudaMalloc another. */
static void unsafe_calls_of_the_capturing_thread(void) {
    void *memory;
    cudaEvent_t older = recorded(non_blocking());
    for (int which = 0; which < 2; which++) {
        mode = which ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeGlobal;
        cudaStream_t stream = capturing();
        GIVES(cudaErrorStreamCaptureUnsupported, cudaEventQuery(older));
        is_invalidated(stream);
        stream = capturing();
        GIVES(cudaErrorStreamCaptureUnsupported, cudaEventSynchronize(older));
        is_invalidated(stream);
        stream = capturing();
        GIVES(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 1 << 20));
        is_invalidated(stream);
    }
    mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t stream = capturing();
    OK(cudaEventQuery(older));
    OK(cudaMalloc(&memory, 1 << 20));
    ends_with(cudaSuccess, stream);
    mode = cudaStreamCaptureModeGlobal;
}

/* PyTorch allocates in its captures so, and its watchdog asks: by the mode of the thread. */
static void a_thread_may_say_that_it_knows(void) {
    enum cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
    cudaEvent_t older = recorded(non_blocking());
    cudaStream_t stream = capturing();
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    HOLDS(relaxed == cudaStreamCaptureModeGlobal);
    OK(cudaEventQuery(older));
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    HOLDS(relaxed == cudaStreamCaptureModeRelaxed);
    ends_with(cudaSuccess, stream);
}

static cudaError_t answer;

static void *query(void *asked) {
    answer = cudaEventQuery(asked);
    return NULL;
}

static void query_in_another_thread(cudaEvent_t asked, cudaError_t expected) {
    pthread_t thread;
    pthread_create(&thread, NULL, query, asked);
    pthread_join(thread, NULL);
    GIVES(expected, answer);
}

/* cudaThreadExchangeStreamCaptureMode: a capture of mode global prohibits unsafe calls to all threads;
 * "concurrent capture sequences in other threads are ignored" otherwise. */
static void unsafe_calls_of_other_threads(void) {
    cudaEvent_t older = recorded(non_blocking());
    cudaStream_t stream = capturing();
    query_in_another_thread(older, cudaErrorStreamCaptureUnsupported);
    is_invalidated(stream);
    mode = cudaStreamCaptureModeThreadLocal;
    stream = capturing();
    query_in_another_thread(older, cudaSuccess);
    ends_with(cudaSuccess, stream);
    mode = cudaStreamCaptureModeGlobal;
}

/* "Using cross-stream dependencies with events": a stream that waits for a captured event joins; what it does
 * has to be joined back [guide]. */
static void branches(void) {
    cudaStream_t stream = capturing(), other = non_blocking();
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamWaitEvent(other, recorded(stream), 0));
    OK(cudaStreamIsCapturing(other, &status));
    HOLDS(status == cudaStreamCaptureStatusActive);
    OK(work(other, 5));
    OK(work(stream, 2));
    GIVES(cudaErrorStreamCaptureUnjoined, ({
              cudaGraph_t graph;
              cudaStreamEndCapture(stream, &graph);
          }));
    OK(cudaStreamBeginCapture(stream, mode));
    OK(cudaStreamWaitEvent(other, recorded(stream), 0));
    OK(work(other, 5));
    OK(work(stream, 2));
    OK(cudaStreamWaitEvent(stream, recorded(other), 0));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    cudaEvent_t from = recorded(stream);
    OK(cudaGraphLaunch(executable, stream));
    cudaEvent_t to = recorded(stream);
    OK(cudaEventSynchronize(to));
    NEAR(5, ms_between(from, to));
}

/* cudaStreamEndCapture: "must be called on the stream in which it was initiated", by the same thread unless
 * relaxed. */
static cudaStream_t ended_elsewhere;

static void *end(void *unused) {
    cudaGraph_t graph;
    answer = cudaStreamEndCapture(ended_elsewhere, &graph);
    return unused;
}

static void who_may_end_it(void) {
    cudaStream_t stream = capturing(), other = non_blocking();
    OK(cudaStreamWaitEvent(other, recorded(stream), 0));
    ends_with(cudaErrorStreamCaptureUnmatched, other);
    is_invalidated(stream);
    GIVES(cudaErrorIllegalState, ({
              cudaGraph_t graph;
              cudaStreamEndCapture(stream, &graph);
          }));
    for (int is_relaxed = 0; is_relaxed < 2; is_relaxed++) {
        pthread_t thread;
        mode = is_relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
        ended_elsewhere = capturing();
        pthread_create(&thread, NULL, end, NULL);
        pthread_join(thread, NULL);
        GIVES(is_relaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread, answer);
        if (!is_relaxed) is_invalidated(ended_elsewhere);
    }
    mode = cudaStreamCaptureModeGlobal;
}

/* "It is invalid to merge two separate capture graphs" [guide]. */
static void captures_do_not_merge(void) {
    cudaStream_t one = capturing(), two = capturing();
    GIVES(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(two, recorded(one), 0));
    is_invalidated(one);
    is_invalidated(two);
}

/* "It is invalid to wait on a non-captured event from a stream which is being captured without specifying the
 * cudaEventWaitExternal flag" [guide]. */
static void captures_do_not_wait_for_others(void) {
    cudaStream_t other = non_blocking();
    cudaEvent_t outside = recorded(other);
    cudaStream_t stream = capturing();
    GIVES(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(stream, outside, 0));
    is_invalidated(stream);
    stream = capturing();
    OK(cudaStreamWaitEvent(stream, outside, cudaEventWaitExternal));
    OK(cudaStreamWaitEvent(stream, event(), 0)); /* never recorded: nothing to wait for */
    ends_with(cudaSuccess, stream);
}

/* cudaStreamBeginCapture: "may not be initiated if stream is cudaStreamLegacy"; "only if the stream is not
 * already in capture mode". cudaStreamAddCallback: "not supported with cudaStreamBeginCapture". */
static void nothing(void *unused) {
    (void)unused;
}

static void called_back(cudaStream_t stream, cudaError_t error, void *unused) {
    (void)stream, (void)error, (void)unused;
}

static void what_cannot_be_captured(void) {
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(NULL, mode));
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(cudaStreamLegacy, mode));
    cudaStream_t stream = capturing();
    GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(stream, mode));
    is_invalidated(stream);
    stream = capturing();
    OK(cudaLaunchHostFunc(stream, nothing, NULL));
    ends_with(cudaSuccess, stream);
    stream = capturing();
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamAddCallback(stream, called_back, NULL, 0));
    is_invalidated(stream);
}

/* "When any stream in the same context is being captured, and it was not created with cudaStreamNonBlocking,
 * any attempted use of the legacy stream is invalid" [guide]; cudaStreamIsCapturing. */
static void the_legacy_stream_beside_a_capture(void) {
    enum cudaStreamCaptureStatus status;
    char bytes[8] = {0};
    cudaStream_t stream = capturing();
    OK(work(NULL, 1)); /* a non-blocking stream has nothing to do with it */
    ends_with(cudaSuccess, stream);
    stream = blocking();
    OK(cudaStreamBeginCapture(stream, mode));
    GIVES(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(NULL, &status));
    ends_with(cudaSuccess, stream); /* asking did no harm */
    OK(cudaStreamBeginCapture(stream, mode));
    GIVES(cudaErrorStreamCaptureImplicit, work(NULL, 1));
    is_invalidated(stream);
    OK(cudaStreamBeginCapture(stream, mode));
    GIVES(cudaErrorStreamCaptureImplicit, cudaEventRecord(event(), NULL));
    is_invalidated(stream);
    OK(cudaStreamBeginCapture(stream, mode));
    GIVES(cudaErrorStreamCaptureImplicit,
          cudaMemcpy(bytes, bytes, 8, cudaMemcpyHostToHost)); /* "synchronous APIs" */
    is_invalidated(stream);
}

int main(void) {
    work_is_recorded_and_not_done();
    a_capturing_stream_is_not_asked();
    a_captured_event_is_not_asked();
    a_device_is_not_waited_for();
    unsafe_calls_of_the_capturing_thread();
    a_thread_may_say_that_it_knows();
    unsafe_calls_of_other_threads();
    branches();
    who_may_end_it();
    captures_do_not_merge();
    captures_do_not_wait_for_others();
    what_cannot_be_captured();
    the_legacy_stream_beside_a_capture();
    return 0;
}
