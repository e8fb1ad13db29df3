/* Graphs: what a capture has recorded, launched as often as wanted. A graph's branches are the capture's
 * streams; times of events inside it are slots that each launch fills anew. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

typedef struct CUgraphExec_st {
    graph graph;
    cudaStream_t *streams; /* of branches from 1 on; branch 0 is the stream of the launch */
} executable;

void graph_add(graph *g, int branch, const operation *op) {
    if (g->count == g->room) {
        g->room = g->room ? g->room * 2 : 64;
        g->nodes = realloc(g->nodes, (size_t)g->room * sizeof *g->nodes);
    }
    g->nodes[g->count++] = (graph_node){branch, *op};
}

static int is_dependency(const operation *op) {
    return op->kind == OP_RECORD || op->kind == OP_WAIT;
}

/* Whether a stream that is joined waits, after node `from`, for what node `from` records. */
static int is_waited_for(const graph *g, int from, const char *is_joined) {
    for (int i = from + 1; i < g->count; i++) {
        const graph_node *node = &g->nodes[i];
        if (node->op.kind == OP_WAIT && node->op.slot == g->nodes[from].op.slot && is_joined[node->branch])
            return 1;
    }
    return 0;
}

static int is_branch_joined(const graph *g, int branch, const char *is_joined) {
    int last = -1;
    for (int i = 0; i < g->count; i++)
        if (g->nodes[i].branch == branch && !is_dependency(&g->nodes[i].op)) last = i;
    if (last < 0) return 1;
    for (int i = last + 1; i < g->count; i++)
        if (g->nodes[i].branch == branch && g->nodes[i].op.kind == OP_RECORD &&
            is_waited_for(g, i, is_joined))
            return 1;
    return 0;
}

/* Every branch's last work is waited for by the first branch, through others or not. */
int graph_is_joined(const graph *g) {
    char *is_joined = calloc((size_t)g->branches, 1);
    int joined = 1;
    is_joined[0] = 1;
    for (int again = 1; again;) {
        again = 0;
        for (int branch = 1; branch < g->branches; branch++)
            if (!is_joined[branch] && is_branch_joined(g, branch, is_joined)) {
                is_joined[branch] = again = 1;
                joined++;
            }
    }
    free(is_joined);
    return joined == g->branches;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags) {
    (void)flags;
    executable *made = calloc(1, sizeof *made);
    made->graph = *g;
    made->graph.nodes = malloc((size_t)(g->count + 1) * sizeof *g->nodes);
    memcpy(made->graph.nodes, g->nodes, (size_t)g->count * sizeof *g->nodes);
    made->streams = calloc((size_t)g->branches, sizeof *made->streams);
    for (int branch = 1; branch < g->branches; branch++)
        cudaStreamCreateWithPriority(&made->streams[branch], cudaStreamNonBlocking, 0);
    *out = made;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags) {
    return cudaGraphInstantiate(out, g, flags);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    if (g) free(g->nodes);
    free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) {
    if (made) {
        free(made->graph.nodes);
        free(made->streams);
    }
    free(made);
    return cudaSuccess;
}

static cudaError_t launch_node(const graph_node *node, cudaStream_t where, timestamp **times) {
    operation op = node->op;
    op.graph_launch = 1;
    if (op.kind == OP_RECORD_EXTERNAL) return cudaEventRecordWithFlags(op.event, where, 0);
    if (is_dependency(&op)) {
        vgpu_lock();
        op.time = times[op.slot];
        op.time->refs++;
        vgpu_unlock();
    }
    return enqueue(where, &op);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t where) {
    const graph *g = &made->graph;
    timestamp **times = calloc((size_t)g->slots + 1, sizeof(timestamp *));
    cudaError_t error = cudaSuccess;
    for (int slot = 0; slot < g->slots; slot++)
        times[slot] = timestamp_new();
    for (int i = 0; i < g->count && !error; i++) {
        int branch = g->nodes[i].branch;
        error = launch_node(&g->nodes[i], branch ? made->streams[branch] : where, times);
    }
    vgpu_lock();
    for (int slot = 0; slot < g->slots; slot++)
        timestamp_drop(times[slot]);
    vgpu_unlock();
    free(times);
    return error;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *count) {
    size_t found = 0;
    for (int i = 0; i < g->count; i++) {
        if (is_dependency(&g->nodes[i].op)) continue;
        if (nodes && found < *count) nodes[found] = (cudaGraphNode_t)&g->nodes[i];
        found++;
    }
    if (!nodes || *count > found) *count = found;
    return cudaSuccess;
}

#if CUDART_VERSION >= 13000 /* PyTorch for CUDA 12.6 does not ask, and arguments were others */
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies,
                                         cudaGraphEdgeData *edges, size_t *count) {
    (void)node, (void)dependencies, (void)edges;
    *count = 0;
    return cudaSuccess;
}
#endif

/* Objects that a graph keeps: they live as long as the process. */
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *at, cudaHostFn_t destroy, unsigned refs,
                                 unsigned flags) {
    (void)destroy, (void)refs, (void)flags;
    *object = at;
    return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned refs) {
    (void)object, (void)refs;
    return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t g, cudaUserObject_t object, unsigned refs, unsigned flags) {
    (void)g, (void)object, (void)refs, (void)flags;
    return cudaSuccess;
}
