/* What is counted, for tests: calls that query or wait, captures, devices with a context, and how starved the
 * host was. Written at the end of a process to VGPU_STATS/RANK.json.
 *
 * The virtual GPU is only as good as its host is idle: kernels take their time by the clock, so a process
 * that waits for a CPU makes steps longer that no GPU would. The kernel tells how long each thread was ready
 * and had no CPU
 * (/proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst). */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"

static long counts[COUNTED];
static char has_context[MAX_DEVICES];
static ns_t began;
static const char *const names[COUNTED] = {"event_query",        "event_synchronize",   "stream_query",
                                           "stream_synchronize", "device_synchronize",  "blocking_copy",
                                           "captures",           "invalidated_captures"};

void count(enum counted what) {
    __atomic_add_fetch(&counts[what], 1, __ATOMIC_RELAXED);
}

void context_made(int device) {
    has_context[device] = 1;
}

int vgpu_has_context(int device) {
    return device >= 0 && device < MAX_DEVICES && has_context[device];
}

/* ns that a thread was ready to run and had no CPU. */
static long long starved_ns(const char *thread) {
    char path[300];
    long long ran = 0, waited = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", thread);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%lld %lld", &ran, &waited) != 2) waited = 0;
    fclose(file);
    return waited;
}

static long long starved_threads_ns(void) {
    long long sum = 0;
    DIR *threads = opendir("/proc/self/task");
    if (!threads) return 0;
    for (struct dirent *thread; (thread = readdir(threads));)
        if (*thread->d_name != '.') sum += starved_ns(thread->d_name);
    closedir(threads);
    return sum;
}

__attribute__((constructor)) static void first(void) {
    began = vgpu_now();
}

__attribute__((destructor)) static void write_stats(void) {
    char path[600], main_thread[20];
    const char *folder = getenv("VGPU_STATS"), *rank = getenv("RANK");
    if (!folder || !rank) return;
    snprintf(path, sizeof path, "%s/%s.json", folder, rank);
    FILE *out = fopen(path, "w");
    if (!out) return;
    snprintf(main_thread, sizeof main_thread, "%d", getpid());
    fprintf(out, "{\"wall_ns\": %lld, ", (long long)(vgpu_now() - began));
    fprintf(out, "\"starved_ns\": %lld, \"starved_all_ns\": %lld, ", starved_ns(main_thread),
            starved_threads_ns());
    for (int i = 0; i < COUNTED; i++)
        fprintf(out, "\"%s\": %ld, ", names[i], counts[i]);
    fprintf(out, "\"contexts\": [");
    for (int device = 0, any = 0; device < MAX_DEVICES; device++)
        if (has_context[device]) fprintf(out, any++ ? ", %d" : "%d", device);
    fprintf(out, "]}\n");
    fclose(out);
}
