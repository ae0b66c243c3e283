/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and contexts. All under emu.lock. */
#ifndef EMU_DEVICE_H
#define EMU_DEVICE_H

#include "emu.h"
#include "stream.h"

struct emu_engine {
    struct emu_op *current;
    struct emu_channel *last; /* a channel with work keeps the engine until it has none */
    uint64_t held_until;      /* a fault: no piece of the current copy before this */
    uint64_t ops, bytes;      /* counters for tests */
};

struct emu_device {
    int ordinal; /* among the visible */
    int gpu;     /* in the machine */
    unsigned char uuid[16];
    int pci_domain, pci_bus, pci_device;
    CUcontext primary;
    int primary_refs;
    unsigned primary_flags;
    int contexts; /* alive on this device */
    struct emu_channel channel[EMU_CLASSES][EMU_MAX_CONNECTIONS];
    struct emu_engine engine[EMU_CLASSES];
    uint64_t sm_work; /* pieces of work that ran on SMs */
    uint64_t compute; /* operations that went through a compute channel */
    CUmemoryPool pool, default_pool;
};

struct CUctx_st {
    CUcontext next;
    struct emu_device *dev;
    uint64_t id;
    unsigned flags;
    bool primary;
    CUresult error;  /* sticky: an engine met an address it could not read or write */
    uint64_t peers;  /* bit d: access to visible device d is enabled */
    CUstream legacy; /* the NULL stream */
};

struct emu_device *emu_device_at(CUdevice dev); /* by ordinal; NULL */
struct emu_device *emu_device_of_gpu(int gpu);  /* NULL: hidden from this process */
CUcontext emu_ctx_current(void);
bool emu_ctx_valid(CUcontext ctx);
CUcontext emu_ctx_first(void);
void emu_streams_end(CUcontext ctx);           /* stream.c: destroys all of a context's */
void emu_memory_end(CUcontext ctx);            /* memory.c: frees all of a context's */
CUstream emu_stream_thread_own(CUcontext ctx); /* the per-thread default stream of the caller */

#endif
