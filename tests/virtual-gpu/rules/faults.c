/* Faults that come and go while a program runs. */
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static void write_faults(const char *text) {
    const char *path = getenv("VGPU_FAULT_FILE");
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    struct timespec look_again = {0, 150000000};
    nanosleep(&look_again, NULL);
}

static double ms_of_work(cudaStream_t stream) {
    cudaEvent_t from = recorded(stream);
    OK(work(stream, 10));
    cudaEvent_t to = recorded(stream);
    OK(cudaEventSynchronize(to));
    return ms_between(from, to);
}

int main(void) {
    cudaStream_t stream = non_blocking();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    NEAR(10, ms_of_work(stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(work(stream, 10));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    write_faults("slow=0:1.5\n");
    NEAR(15, ms_of_work(stream));
    cudaEvent_t from = recorded(stream);
    OK(cudaGraphLaunch(executable, stream)); /* a graph is as slow as its device is now */
    cudaEvent_t to = recorded(stream);
    OK(cudaEventSynchronize(to));
    NEAR(15, ms_between(from, to));
    write_faults("slow=1:3\n"); /* of another rank */
    NEAR(10, ms_of_work(stream));
    write_faults("hang=0\n");
    OK(work(stream, 1));
    to = recorded(stream);
    usleep(50000);
    GIVES(cudaErrorNotReady, cudaEventQuery(to));
    write_faults("# nothing\n");
    OK(work(stream, 1));
    usleep(50000);
    GIVES(cudaErrorNotReady, cudaEventQuery(to)); /* what hangs stays so */
    _exit(0);
}
