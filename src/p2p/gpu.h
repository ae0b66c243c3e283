/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to a GPU in a process, shared by its communicators: one object for each context. */
#ifndef HOCCL_P2P_GPU_H
#define HOCCL_P2P_GPU_H

#include "p2p/engine.h"
#include "p2p/loan.h"
#include "p2p/mapping.h"
#include "p2p/memory.h"
#include "p2p/nudge.h"
#include "p2p/stage.h"
#include "p2p/submitter.h"
#include "stream/gate.h"
#include "topo/pci.h"

#define HOCCL_GPU_STAGES 2

struct hoccl_wire;

struct hoccl_gpu {
    struct hoccl_list link; /* in the process's table */
    int turn;               /* local rank of who opened it: spreads GPUs without a place over NICs */
    int users;              /* communicators; under the table's lock */
    bool ready;             /* its parts below are open; under the table's lock */
    bool settled;           /* a communicator may be posting: the gate is what it is; under the table's lock */
    struct hoccl_device device;
    struct hoccl_flag_pool flags;
    struct hoccl_gate gate;
    struct hoccl_submitter submitter;
    struct hoccl_engine engine[HOCCL_DIRECTIONS];
    struct hoccl_nudge nudge;
    uint64_t self_at;     /* progress thread: when a message to oneself was last stepped, ns */
    uint64_t detour_each; /* progress thread: ns that a MiB by way of host memory took of late; 0: not seen (detour.h) */
    struct hoccl_mappings mappings;
    struct hoccl_exports exports;
    struct hoccl_stage stage[HOCCL_GPU_STAGES]; /* on other GPUs of this process: a peer can be on one of them; other = −1:
                                                   there is none */
    uint64_t resumed; /* progress thread: when the process last ran again after it had been stopped, ns */
    struct hoccl_wire *wire; /* for ranks of other nodes; NULL: never needed. Set under the table's lock, then published */
    struct hoccl_doorbell bell; /* of the progress thread */
    void *proxy; /* core/proxy.c: the progress thread of this GPU's communicators */
};

/* The object of the calling thread's GPU (see hoccl_device_open), made at first use. Errors: DEVICE, MEMORY, SYSTEM. */
HOCCL_Result hoccl_gpu_open(int local_rank, struct hoccl_gpu **gpu);

/* The GPU's endpoint for ranks of other nodes, whose absence is no error yet; then, once there are such ranks, its pools. */
HOCCL_Result hoccl_gpu_open_wire(struct hoccl_gpu *gpu);
HOCCL_Result hoccl_gpu_equip_wire(struct hoccl_gpu *gpu);

/* Before them: the PCI address of the GPU on which they are to lie and that only another rank can reach (loan.h); "" there is none.
 * Then what that rank has given; the descriptors become the wire's, or are closed if the pools are there already. */
void hoccl_gpu_wants(struct hoccl_gpu *gpu, char pci[HOCCL_PCI_TEXT]);
void hoccl_gpu_accept_loan(struct hoccl_gpu *gpu, const struct hoccl_loan *loan);

/* Memory of HOCCL_MemAlloc is about to be freed: no NIC knows it any more. */
void hoccl_gpus_forget(const void *address);

/* A communicator is about to be given to the caller. */
void hoccl_gpu_settle(struct hoccl_gpu *gpu);

/* Progress thread: the process has not run for `gap` ns, so for that long nothing of it could move. */
void hoccl_gpu_forgive(struct hoccl_gpu *gpu, uint64_t gap);

/* One communicator less. With the last one the threads end and the memory is freed; while streams of the process are
 * still parked (in another GPU's communicators) it is kept for the next communicator instead, since freeing would hang;
 * the last object of the process that is closed frees all of them.
 * TIMEOUT if the submitter is stuck in the driver: the object is then given up, not freed. */
HOCCL_Result hoccl_gpu_close(struct hoccl_gpu *gpu);

#endif
