/* What is counted, for tests: calls that query or wait, captures, kernels and collectives, devices with a context, and
 * how starved the host was. Written at the end of a process to VGPU_STATS/RANK.json. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

static long counts[COUNTED];
static char has_context[MAX_DEVICES];
static ns_t began;
static const char *const names[COUNTED] = {"event_query",        "event_synchronize",   "stream_query",
                                           "stream_synchronize", "device_synchronize",  "blocking_copy",
                                           "captures",           "invalidated_captures", "kernels",
                                           "collectives"};

void count(enum counted what) {
    __atomic_add_fetch(&counts[what], 1, __ATOMIC_RELAXED);
}

void context_made(int device) {
    has_context[device] = 1;
}

int vgpu_has_context(int device) {
    return device >= 0 && device < MAX_DEVICES && has_context[device];
}

__attribute__((constructor)) static void first(void) {
    began = vgpu_now();
}

__attribute__((destructor)) static void write_stats(void) {
    char path[600];
    const char *folder = getenv("VGPU_STATS"), *rank = getenv("RANK");
    if (!folder || !rank) return;
    snprintf(path, sizeof path, "%s/%s.json", folder, rank);
    FILE *out = fopen(path, "w");
    if (!out) return;
    fprintf(out, "{\"wall_ns\": %lld, ", (long long)(vgpu_now() - began));
    fprintf(out, "\"withheld_ns\": %lld, ", (long long)clock_withheld());
    for (int i = 0; i < COUNTED; i++)
        fprintf(out, "\"%s\": %ld, ", names[i], counts[i]);
    fprintf(out, "\"contexts\": [");
    for (int device = 0, any = 0; device < MAX_DEVICES; device++)
        if (has_context[device]) fprintf(out, any++ ? ", %d" : "%d", device);
    fprintf(out, "]}\n");
    fclose(out);
}
