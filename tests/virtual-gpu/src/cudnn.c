/* libcudnn: a version, and no convolutions (torch.backends.cudnn.enabled = False). */
#include <stddef.h>
#include <stdlib.h>

#include "cuda_runtime_api.h"

#define VERSION CUDNN_PLAYED /* build.py's */

size_t cudnnGetVersion(void) {
    return VERSION;
}

size_t cudnnGetCudartVersion(void) {
    return CUDART_VERSION;
}

const char *cudnnGetErrorString(int error) {
    return error ? "not in a virtual GPU" : "success";
}

void cudnnGetLastErrorString(char *text, size_t size) {
    if (size) *text = 0;
}

int cudnnGetProperty(int which, int *value) {
    int parts[] = {VERSION / 10000, VERSION / 100 % 100, VERSION % 100};
    *value = which >= 0 && which < 3 ? parts[which] : 0;
    return 0;
}

int cudnnCreate(void **handle) {
    *handle = calloc(1, 64);
    return 0;
}

int cudnnSetStream(void *handle, void *stream) {
    (void)handle, (void)stream;
    return 0;
}
