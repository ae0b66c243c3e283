/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: made by capture or by hand from copies and memsets, instantiated, launched. */
#include "graph.h"
#include "copy.h"

#include <stdlib.h>

/* An executable graph is a copy of the graph as it was; its nodes keep a link to those that they came from. */
struct CUgraphExec_st {
    CUgraphExec next;
    CUgraph graph;
    CUgraphNode *origin;
};

static CUgraph graphs;
static CUgraphExec execs;

CUgraph emu_graph_new(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    if (!graph)
        return NULL;
    graph->last = &graph->first;
    graph->next = graphs;
    graphs = graph;
    return graph;
}

void emu_graph_free(CUgraph graph)
{
    CUgraph *link = &graphs;
    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    while (graph->first) {
        CUgraphNode node = graph->first;
        graph->first = node->next;
        free(node);
    }
    free(graph);
}

CUresult emu_graph_add(CUgraph graph, const struct emu_op *op, unsigned classes)
{
    CUgraphNode node = calloc(1, sizeof *node);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->op = *op;
    node->classes = classes;
    *graph->last = node;
    graph->last = &node->next;
    graph->nodes++;
    return CUDA_SUCCESS;
}

static CUgraph find(CUgraph handle)
{
    CUgraph g = graphs;
    while (g && g != handle)
        g = g->next;
    return g;
}

static CUgraphExec find_exec(CUgraphExec handle)
{
    CUgraphExec e = execs;
    while (e && e != handle)
        e = e->next;
    return e;
}

static CUresult enter_graph(CUgraph handle)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return find(handle) ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || flags)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *out = emu_graph_new();
    return emu_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = enter_graph(graph);
    if (result != CUDA_SUCCESS)
        return result;
    emu_graph_free(graph);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    CUresult result = enter_graph(graph);
    if (result != CUDA_SUCCESS)
        return result;
    if (!count)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (!nodes) {
        *count = graph->nodes;
        return emu_leave(CUDA_SUCCESS);
    }
    size_t n = 0;
    for (CUgraphNode node = graph->first; node && n < *count; node = node->next)
        nodes[n++] = node;
    for (size_t i = n; i < *count; i++)
        nodes[i] = NULL;
    *count = n;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    static const CUgraphNodeType types[] = {
        [EMU_OP_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [EMU_OP_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
        [EMU_OP_WRITE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [EMU_OP_WAIT] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [EMU_OP_BARRIER] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [EMU_OP_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [EMU_OP_AFTER] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [EMU_OP_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [EMU_OP_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [EMU_OP_RETIRE] = CU_GRAPH_NODE_TYPE_MEM_FREE,
    };
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = types[node->op.kind];
    return CUDA_SUCCESS;
}

/* Fills a copy operation from a description by letting the copy call enqueue it into a capture of one node. */
static CUresult add_copy(CUgraph graph, const CUDA_MEMCPY3D *m, CUcontext ctx)
{
    struct emu_request r;
    CUresult result = emu_request_box(m, &r);
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_op op = {.kind = EMU_OP_COPY, .dev = ctx->dev};
    unsigned classes;
    result = emu_copy_fill(ctx, &r, &op, &classes);
    return result == CUDA_SUCCESS ? emu_graph_add(graph, &op, classes) : result;
}

static CUgraphNode newest(CUgraph graph)
{
    CUgraphNode node = graph->first;
    while (node && node->next)
        node = node->next;
    return node;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t n,
                              const CUDA_MEMCPY3D *m, CUcontext ctx)
{
    CUresult result = enter_graph(graph);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || !m || !emu_ctx_valid(ctx) || (n && !dependencies))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    result = add_copy(graph, m, ctx);
    if (result == CUDA_SUCCESS)
        *out = newest(graph);
    return emu_leave(result);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t n,
                              const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
{
    CUresult result = enter_graph(graph);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || !p || !emu_ctx_valid(ctx) || (n && !dependencies))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct emu_op op;
    result = emu_set_fill(ctx, p, &op);
    if (result == CUDA_SUCCESS)
        result = emu_graph_add(graph, &op, 1u << EMU_COMPUTE);
    if (result == CUDA_SUCCESS)
        *out = newest(graph);
    return emu_leave(result);
}

static CUresult copy_nodes(CUgraphExec exec, CUgraph from)
{
    size_t i = 0;
    for (CUgraphNode node = from->first; node; node = node->next) {
        CUresult result = emu_graph_add(exec->graph, &node->op, node->classes);
        if (result != CUDA_SUCCESS)
            return result;
        exec->origin[i++] = node;
    }
    return CUDA_SUCCESS;
}

static void exec_free(CUgraphExec exec)
{
    if (exec->graph)
        emu_graph_free(exec->graph);
    free(exec->origin);
    free(exec);
}

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    CUresult result = enter_graph(graph);
    if (result != CUDA_SUCCESS)
        return result;
    (void)flags;
    if (!out)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (!exec)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    exec->graph = emu_graph_new();
    exec->origin = calloc(graph->nodes + 1, sizeof *exec->origin);
    result = exec->graph && exec->origin ? copy_nodes(exec, graph) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        exec_free(exec);
        return emu_leave(result);
    }
    exec->next = execs;
    execs = exec;
    *out = exec;
    return emu_leave(CUDA_SUCCESS);
}

/* Enters with both, the lock is held on success. */
static CUresult enter_exec(CUgraphExec handle, CUstream stream, CUcontext *ctx, CUstream *s)
{
    CUresult result = emu_enter_ctx(ctx);
    if (result != CUDA_SUCCESS)
        return result;
    *s = emu_stream_check(stream, *ctx);
    if (!*s)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    return find_exec(handle) ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    CUcontext ctx;
    CUstream s;
    CUresult result = enter_exec(exec, stream, &ctx, &s);
    return result == CUDA_SUCCESS ? emu_leave(CUDA_SUCCESS) : result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUcontext ctx;
    CUstream s;
    CUresult result = enter_exec(exec, stream, &ctx, &s);
    if (result != CUDA_SUCCESS)
        return result;
    emu_hazard_pass();
    for (CUgraphNode node = exec->graph->first; node && result == CUDA_SUCCESS; node = node->next) {
        struct emu_op *op = emu_op_new(s, node->op.kind);
        if (!op)
            return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
        *op = node->op;
        op->stream = s;
        result = emu_enqueue(op, node->classes);
    }
    return emu_leave(result);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *m, CUcontext ctx)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_request r;
    if (!find_exec(exec) || !m || !emu_ctx_valid(ctx))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    size_t i = 0;
    CUgraphNode mine = exec->graph->first;
    while (mine && exec->origin[i] != node) {
        mine = mine->next;
        i++;
    }
    if (!mine || mine->op.kind != EMU_OP_COPY)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    result = emu_request_box(m, &r);
    struct emu_op op = {.kind = EMU_OP_COPY, .dev = ctx->dev};
    unsigned classes;
    if (result == CUDA_SUCCESS)
        result = emu_copy_fill(ctx, &r, &op, &classes);
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    mine->op = op;
    mine->classes = classes;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!find_exec(exec))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    CUgraphExec *link = &execs;
    while (*link != exec)
        link = &(*link)->next;
    *link = exec->next;
    exec_free(exec);
    return emu_leave(CUDA_SUCCESS);
}
