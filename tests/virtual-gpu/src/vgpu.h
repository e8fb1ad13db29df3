/* What the virtual GPU's libraries share: exported by the fake libcudart, used by the fakes of libcuda,
 * cuBLAS and NCCL. */
#ifndef VGPU_H
#define VGPU_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_runtime_api.h"

/* Nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a machine, less what clock.c says.
 */
typedef int64_t ns_t;
#define NEVER INT64_MAX

ns_t vgpu_now(void);
void vgpu_sleep_until(ns_t at);

/* A number from the environment. */
double vgpu_number(const char *name, double otherwise);

/* Enqueues a kernel that takes `duration` ns on a GPU that is not slow. */
cudaError_t vgpu_kernel(cudaStream_t stream, double duration, const char *name);

/* An operation whose end depends on other processes, such as a collective. */
typedef struct {
    /* Called when it is enqueued, each time that a graph is launched too; gives the context of `poll`. */
    void *(*begin)(void *description, int graph_launch);
    /* Called under the engine's lock with the time at which the stream came to it. 1 where *end is known. */
    int (*poll)(void *context, ns_t start, ns_t *end);
    void *description;
} vgpu_remote;
cudaError_t vgpu_enqueue_remote(cudaStream_t stream, const vgpu_remote *remote);

/* The engine sleeps on a word; other processes wake it when they have published something. */
void vgpu_use_bell(uint32_t *shared);
void vgpu_ring(uint32_t *bell);

void vgpu_lock(void);
void vgpu_unlock(void);
void vgpu_pump(void); /* with the lock: something may have been resolved */

int vgpu_is_capturing(cudaStream_t stream);
int vgpu_device_of(cudaStream_t stream);
int vgpu_has_context(int device);

/* How much slower this rank's links are: 1 where nothing is wrong. */
double vgpu_link_factor(void);

/* Called by a function that does nothing here, once each. */
void vgpu_stub_called(const char *name);

#endif
