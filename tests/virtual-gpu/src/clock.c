/* The virtual GPU's clock, and the guard against a starved host.
 *
 * Kernels take their time by a clock, so a program that is ready to enqueue and gets no CPU would make steps
 * longer that no GPU makes longer, and every test on a busy machine would accuse a healthy rank. So the clock of a
 * process is CLOCK_MONOTONIC less what was withheld from it: the time that a thread which enqueues was ready
 * and had no CPU
 * (/proc/self/task/TID/schedstat; Documentation/scheduler/sched-stats.rst), or waited for the engine's lock,
 * which a driver does not have and whose holder may have no CPU, and the time by which a wait for
 * the GPU ended later than what was waited for. Processes' clocks then differ by how starved each was; they
 * come together where one waits for another: a wait sets the clock to what was waited for.
 *
 * VGPU_GUARD=off: the plain clock. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"

#define LOOK_NS 100000   /* from this much that was neither CPU time nor foreseen on, schedstat is read */
#define WAKE_UP_NS 50000 /* a wait may end this late */

static ns_t withheld, last_seen;
static int is_off;
static __thread struct {
    ns_t wall, cpu, starved;
} before;

static ns_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static ns_t wall_clock(void) {
    return read_clock(CLOCK_MONOTONIC);
}

ns_t clock_withheld(void) {
    return __atomic_load_n(&withheld, __ATOMIC_RELAXED);
}

ns_t vgpu_now(void) {
    return wall_clock() - clock_withheld();
}

__attribute__((constructor)) static void first(void) {
    const char *guard = getenv("VGPU_GUARD");
    is_off = guard && !strcmp(guard, "off");
}

/* ns that this thread was ready to run and had no CPU. */
static ns_t thread_starved(void) {
    static __thread int file = -1;
    char text[80];
    if (file < 0) {
        snprintf(text, sizeof text, "/proc/self/task/%d/schedstat", gettid());
        file = open(text, O_RDONLY | O_CLOEXEC);
    }
    ssize_t size = file < 0 ? 0 : pread(file, text, sizeof text - 1, 0);
    if (size <= 0) return 0;
    text[size] = 0;
    const char *second = strchr(text, ' ');
    return second ? atoll(second) : 0;
}

/* At most the time since the process last enqueued: where threads take turns, the others' turns were no loss.
 */
static void withhold(ns_t more) {
    ns_t most = wall_clock() - last_seen;
    if (more > most) more = most;
    if (more > 0 && !is_off) __atomic_add_fetch(&withheld, more, __ATOMIC_RELAXED);
}

static void remember(ns_t wall, ns_t starved) {
    before.wall = last_seen = wall;
    before.cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
    before.starved = starved;
}

/* A thread enqueues: what was withheld from it since it last did. With the lock. */
void clock_account(void) {
    ns_t wall = wall_clock(), idle = wall - before.wall - (read_clock(CLOCK_THREAD_CPUTIME_ID) - before.cpu);
    ns_t starved = before.starved;
    if (!before.wall || idle > LOOK_NS) starved = thread_starved();
    if (before.wall) withhold(starved - before.starved);
    remember(wall, starved);
}

/* The engine's lock, for a thread that found it taken. */
void clock_lock(pthread_mutex_t *lock) {
    ns_t since = wall_clock(), starved = before.wall ? thread_starved() : 0;
    pthread_mutex_lock(lock);
    if (!before.wall) return; /* never enqueued: nobody's GPU waits for it */
    withhold(wall_clock() - since - (thread_starved() - starved)); /* the rest is withheld when it enqueues */
}

/* A wait for what happened at `at` is over, which began at `since` by this clock: the clock goes on from
 * there. */
void clock_waited(ns_t since, ns_t at) {
    withhold(vgpu_now() - (at > since ? at : since) - WAKE_UP_NS);
    remember(wall_clock(), thread_starved());
}

void vgpu_sleep_until(ns_t at) {
    static __thread int has_short_slack;
    if (!has_short_slack) { /* the kernel's default lets a sleep be 50 us longer */
        has_short_slack = 1;
        prctl(PR_SET_TIMERSLACK, 1000UL);
    }
    for (ns_t now = vgpu_now(); now < at; now = vgpu_now()) { /* more may be withheld meanwhile */
        ns_t left = at - now;
        struct timespec duration = {left / 1000000000, left % 1000000000};
        if (nanosleep(&duration, NULL) && errno != EINTR) return;
    }
}
