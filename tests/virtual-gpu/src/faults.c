/* Faults: a slow device, a slow link, a device that hangs, a process that is killed.
 *
 * By the environment for the whole run, or in a file (VGPU_FAULT_FILE) whose lines may change while the job
 * runs:
 *
 *   slow=2:1.25,3:1.1   kernels and copies of ranks 2 and 3 take that much longer    VGPU_SLOW
 *   link=2:4            collectives with rank 2 in them take four times their bytes  VGPU_LINK
 *   hang=2@30           from second 30 on nothing ends any more on rank 2's device   VGPU_HANG
 *   kill=2@30           then rank 2 is killed                                        VGPU_KILL
 *
 * A device that has hung stays so. Seconds are those of the process. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine.h"

#define LOOK_AGAIN 100000000 /* ns between looks at the file */

static struct {
    double slow, link;
    ns_t hang, kill;
} fault = {1, 1, NEVER, NEVER};
static int rank;
static ns_t began, look_at;
static const char *file;
static struct timespec file_time;

/* The number after "RANK:" in a list such as "2:1.25,3:1.1". */
static double of_rank(const char *list, char separator, double otherwise) {
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char *after;
        if (strtol(at, &after, 10) != rank || after == at) continue;
        return *after == separator ? atof(after + 1) : 0;
    }
    return otherwise;
}

static ns_t when(const char *list) {
    double seconds = of_rank(list, '@', -1);
    return seconds < 0 ? NEVER : began + (ns_t)(seconds * 1e9);
}

static void set(const char *name, const char *value) {
    if (!strcmp(name, "slow"))
        fault.slow = of_rank(value, ':', 1);
    else if (!strcmp(name, "link"))
        fault.link = of_rank(value, ':', 1);
    else if (!strcmp(name, "hang"))
        fault.hang = when(value);
    else if (!strcmp(name, "kill"))
        fault.kill = when(value);
    else
        fprintf(stderr, "virtual GPU: no such fault: %s\n", name);
}

static void by_environment(void) {
    static const char *const names[][2] = {
        {"slow", "VGPU_SLOW"}, {"link", "VGPU_LINK"}, {"hang", "VGPU_HANG"}, {"kill", "VGPU_KILL"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        set(names[i][0], getenv(names[i][1]));
}

static void by_file(void) {
    char line[256];
    FILE *lines = fopen(file, "r");
    if (!lines) return;
    by_environment();
    while (fgets(line, sizeof line, lines)) {
        char *value = strchr(line, '=');
        if (!value || *line == '#') continue;
        *value++ = 0;
        value[strcspn(value, "\n")] = 0;
        set(line, value);
    }
    fclose(lines);
}

__attribute__((constructor)) static void first(void) {
    rank = (int)vgpu_number("RANK", 0);
    began = vgpu_now();
    file = getenv("VGPU_FAULT_FILE");
    by_environment();
}

static void look(ns_t now) {
    struct stat state;
    if (fault.kill <= now) raise(SIGKILL);
    if (!file || now < look_at) return;
    look_at = now + LOOK_AGAIN;
    if (stat(file, &state)) return;
    if (!memcmp(&state.st_mtim, &file_time, sizeof file_time)) return;
    file_time = state.st_mtim;
    by_file();
}

double fault_scaled(double duration) {
    ns_t now = vgpu_now();
    look(now);
    return fault.hang <= now ? INFINITY : duration * fault.slow;
}

double vgpu_link_factor(void) {
    look(vgpu_now());
    return fault.link;
}
