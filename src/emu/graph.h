/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs and capture. A graph is a list of operations in the order in which they were captured or added, which any
 * dependency among them respects; a launch puts all of them into one stream. So branches do not run side by side:
 * a graph whose branch waits for a word that another branch writes later would hang here, and not on a GPU.
 */
#ifndef EMU_GRAPH_H
#define EMU_GRAPH_H

#include "device.h"

struct CUgraphNode_st {
    CUgraphNode next;
    struct emu_op op; /* a pattern for those that launches make */
    unsigned classes;
};

struct CUgraph_st {
    CUgraph next;
    CUgraphNode first, *last;
    size_t nodes;
};

/* One capture, of one or several streams. */
struct emu_capture {
    struct emu_capture *next;
    uint64_t id;
    CUgraph graph;
    uint64_t origin; /* number of the stream that began it */
    CUstreamCaptureMode mode;
    pthread_t thread;
    bool invalid;
};

CUgraph emu_graph_new(void);
void emu_graph_free(CUgraph graph);
CUresult emu_graph_add(CUgraph graph, const struct emu_op *op, unsigned classes);

/* capture.c */
CUresult emu_capture_take(struct emu_op *op, unsigned classes); /* instead of enqueueing; takes the operation */
CUresult emu_capture_unsafe(void); /* a call that no capture allows: an error, and the captures are spoilt */
bool emu_capture_record(CUevent event, CUstream s);
bool emu_capture_wait(CUevent event, CUstream s, CUresult *result);
bool emu_capture_blocks_legacy(CUcontext ctx);

#endif
