/* What belongs to a device. [devices] CUDA C++ Programming Guide, "Multi-Device System", "Stream and Event
 * Behavior". */
#include "check.h"

static cudaStream_t stream_on(int device) {
    OK(cudaSetDevice(device));
    return non_blocking();
}

/* "A kernel launch will fail if it is issued to a stream that is not associated to the current device. A
 * memory copy will succeed" [devices]. */
static void launches_are_for_the_current_device(void) {
    int one = 1, two = 0;
    cudaStream_t first = stream_on(0), second = stream_on(1);
    GIVES(cudaErrorInvalidResourceHandle, work(first, 1));
    OK(work(second, 1));
    OK(cudaMemcpyAsync(&two, &one, sizeof one, cudaMemcpyDefault, first));
    HOLDS(two == 1);
}

/* "cudaEventRecord() will fail if the input event and input stream are associated to different devices"
 * [devices]. An event is its creator's current device's, whichever is current when it is recorded. */
static void events_are_recorded_on_their_device(void) {
    cudaStream_t first = stream_on(0), second = stream_on(1);
    OK(cudaSetDevice(0));
    cudaEvent_t event_of_first = event();
    GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(event_of_first, second));
    OK(cudaSetDevice(1));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(event_of_first, NULL));
    OK(cudaEventRecord(event_of_first, first));
}

/* "cudaEventElapsedTime() will fail if the two input events are associated to different devices.
 * cudaEventSynchronize() and cudaEventQuery() will succeed even if the input event is associated to a device
 * that is different from the current device. cudaStreamWaitEvent() will succeed even if the input stream and
 * input event are associated to different devices" [devices]. */
static void events_are_asked_from_anywhere(void) {
    float ms;
    cudaStream_t first = stream_on(0);
    OK(work(first, 3));
    cudaEvent_t of_first = recorded(first);
    cudaStream_t second = stream_on(1);
    OK(cudaStreamWaitEvent(second, of_first, 0));
    OK(work(second, 2));
    cudaEvent_t of_second = recorded(second);
    OK(cudaSetDevice(2));
    OK(cudaEventSynchronize(of_second));
    OK(cudaEventQuery(of_first));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, of_first, of_second));
}

/* cudaEventElapsedTime: "if cudaEventRecord() has not been called on either event", or timing is disabled. */
static void events_without_a_time(void) {
    float ms;
    cudaEvent_t without;
    cudaStream_t stream = stream_on(0);
    OK(cudaEventCreateWithFlags(&without, cudaEventDisableTiming));
    OK(cudaEventRecord(without, stream));
    OK(cudaStreamSynchronize(stream));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, event(), recorded(stream)));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, without, recorded(stream)));
    OK(cudaEventQuery(event())); /* "if cudaEventRecord() has not been called on event [...] cudaSuccess" */
}

static void memory_is_a_devices(void) {
    void *on_first, *on_second, *more;
    struct cudaPointerAttributes attributes;
    size_t is_free, total;
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&on_first, (size_t)60 << 30));
    GIVES(cudaErrorMemoryAllocation, cudaMalloc(&more, (size_t)60 << 30));
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&on_second, (size_t)60 << 30));
    OK(cudaPointerGetAttributes(&attributes, (char *)on_first + 4096));
    HOLDS(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
    OK(cudaMemGetInfo(&is_free, &total));
    HOLDS(total - is_free == (size_t)60 << 30);
    OK(cudaFree(on_second));
    OK(cudaMemGetInfo(&is_free, &total));
    HOLDS(total == is_free);
    GIVES(cudaErrorInvalidValue, cudaFree((char *)on_first + 4096));
    OK(cudaPointerGetAttributes(&attributes, &attributes));
    HOLDS(attributes.type == cudaMemoryTypeUnregistered);
}

static void there_are_four(void) {
    int devices;
    OK(cudaGetDeviceCount(&devices));
    HOLDS(devices == 4);
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(4));
    GIVES(cudaErrorInvalidDevice, cudaGetLastError());
    OK(cudaGetLastError());
}

int main(void) {
    launches_are_for_the_current_device();
    events_are_recorded_on_their_device();
    events_are_asked_from_anywhere();
    events_without_a_time();
    memory_is_a_devices();
    there_are_four();
    return 0;
}
