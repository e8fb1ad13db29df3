/* The driver's functions, looked up by name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "engine.h"

static long not_supported(void) {
    return cudaErrorNotSupported;
}

void *driver_library(void) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    return driver;
}

/* The one of that name, or its second version; else one that says that it is not supported. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    void *driver = driver_library();
    char second[128];
    (void)version, (void)flags;
    snprintf(second, sizeof second, "%s_v2", name);
    *function = driver ? dlsym(driver, name) : NULL;
    if (!*function && driver) *function = dlsym(driver, second);
    if (!*function) {
        vgpu_stub_called(name);
        *function = (void *)(uintptr_t)not_supported;
    }
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* What CUDA 12 has instead: the version is that of the headers. */
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, result);
}
