/* Settings from the environment (README.md lists them), and the trace. */
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

struct settings settings;
const double clock_ghz = 1.98; /* an H100's, for kernels that spin for cycles */

double vgpu_number(const char *name, double otherwise) {
    const char *value = getenv(name);
    return value && *value ? atof(value) : otherwise;
}

static int visible_devices(int devices) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) return devices;
    int listed = *visible && *visible != '-';
    for (const char *at = visible; *at; at++)
        listed += *at == ',';
    return listed < devices ? listed : devices;
}

__attribute__((constructor)) static void read_settings(void) {
    settings.kernel_ns = vgpu_number("VGPU_KERNEL_US", 5) * 1e3;
    settings.threads_per_ns = vgpu_number("VGPU_THREADS_PER_US", 60000) / 1e3;
    settings.copy_gbs = vgpu_number("VGPU_COPY_GBS", 50);
    settings.device_copy_gbs = vgpu_number("VGPU_DEVICE_COPY_GBS", 1500);
    settings.copied_bytes = (size_t)vgpu_number("VGPU_COPIED_BYTES", 1 << 20);
    settings.memory_bytes = (size_t)(vgpu_number("VGPU_MEMORY_GB", 80) * (1ULL << 30));
    int devices = (int)vgpu_number("VGPU_DEVICES", 4);
    settings.devices = visible_devices(devices < MAX_DEVICES ? devices : MAX_DEVICES);
    const char *trace = getenv("VGPU_TRACE");
    settings.trace = trace ? *trace : 0;
}

void vgpu_stub_called(const char *name) {
    if (settings.trace) fprintf(stderr, "virtual GPU: stub called: %s\n", name);
}
