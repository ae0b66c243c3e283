/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, operations and hardware channels. An operation stands in its stream's queue and in the queue of each
 * channel it needs, from its enqueueing to its end, and may run when it is at the head of all of them: so whatever
 * is parked in a channel stops what other streams have put behind it there. All under emu.lock.
 */
#ifndef EMU_STREAM_H
#define EMU_STREAM_H

#include "emu.h"

/* A queue's room: 511 pairs of write and wait, or about 1,020 copies; then the enqueue call blocks. */
#define EMU_QUEUE_UNITS 1022

/* Streams of a process that may have a wait in their queue; the call that would park one more hangs until one goes.
 * Measured: somewhere between 33 and 48. */
#define EMU_WAITING_MAX 40

enum emu_kind {
    EMU_OP_COPY,
    EMU_OP_SET,
    EMU_OP_WRITE,
    EMU_OP_WAIT,
    EMU_OP_BARRIER,
    EMU_OP_RECORD,
    EMU_OP_AFTER, /* cuStreamWaitEvent */
    EMU_OP_KERNEL,
    EMU_OP_HOST,
    EMU_OP_RETIRE, /* cuMemFreeAsync */
};

/* queued -> (pump) ready -> (engine or SMs free) running -> done, or from queued straight to done. */
enum emu_state { EMU_QUEUED, EMU_READY, EMU_RUNNING };

/* One side of a copy: rows of bytes. A pointer that no range holds is pageable host memory. */
struct emu_side {
    CUdeviceptr p;
    size_t pitch, slice; /* bytes from row to row, from plane to plane */
};

struct emu_copy {
    struct emu_side dst, src;
    size_t width, height, depth;
    uint32_t fill;         /* EMU_OP_SET */
    unsigned fill_size;    /* 1, 2 or 4 */
    enum emu_class engine; /* EMU_COMPUTE: SMs, or (small copies from the host) the channel itself */
    bool on_sm;
    size_t pieces, piece, next; /* moved in shuffled order: start + next * stride */
    size_t start, stride;
};

struct emu_memop {
    CUdeviceptr address;
    uint64_t value;
    unsigned flags;
    bool wide;
};

struct emu_launch {
    CUfunction fn;
    uint64_t slots, block; /* thread slots of all its blocks, of one */
    uint64_t ns;           /* hold's argument */
    CUdeviceptr flag;      /* nop's: 7 is stored there; 0: nowhere */
    uint64_t end_ns;
};

struct emu_op {
    struct emu_op *next; /* in its stream */
    struct emu_op *behind[EMU_CLASSES];
    struct emu_channel *channel[EMU_CLASSES];
    unsigned classes; /* bits */
    CUstream stream;
    struct emu_device *dev; /* whose channels, engines and SMs it uses */
    enum emu_kind kind;
    enum emu_state state;
    uint64_t seq;
    uint64_t not_before;
    bool stuck; /* stands behind a wait, or is one */
    bool timed; /* not_before is set */
    bool parked;
    uint64_t compute, looked; /* parked: the device's count, and the time in ns, when its word was last looked at */
    bool void_copy; /* a fault: moves nothing */
    uint64_t held;  /* thread slots that it occupies */
    void *bounce;   /* host memory that goes with it */
    union {
        struct emu_copy copy;
        struct emu_memop mem;
        struct emu_launch launch;
        struct {
            CUevent event;
            uint64_t generation;
        } ev;
        struct {
            CUhostFn fn;
            void *arg;
        } host;
        CUdeviceptr retire;
    };
};

struct emu_channel {
    struct emu_op *head, *tail;
    unsigned ops, stuck;
};

struct CUstream_st {
    CUstream next;                 /* all streams */
    CUstream next_busy, prev_busy; /* those with work */
    CUcontext ctx;
    uint64_t id;
    unsigned flags;
    int priority;
    bool legacy, destroyed, busy;
    struct emu_op *head, *tail;
    unsigned units;
    uint64_t last;                 /* seq of the newest operation; 0: none yet */
    unsigned waits;                /* waits in the queue */
    unsigned carried;              /* classes of copy that it has ever carried */
    unsigned front;                /* classes of the newest operation that has one */
    unsigned pending[EMU_CLASSES]; /* operations that stand in its channel of the class */
    struct emu_channel *channel[EMU_CLASSES];
    struct emu_capture *capture;
    bool unjoined; /* has captured work that no event has joined yet */
};

struct CUevent_st {
    CUevent next;
    CUcontext ctx;
    unsigned flags;
    uint64_t recorded, done; /* generations: one a record */
    uint64_t at_ns;
    int refs;
    bool destroyed;
    uint64_t capture, captured_in; /* numbers of the capture and the stream in which it was last recorded */
};

/* stream.c */
CUstream emu_stream_check(CUstream handle, CUcontext ctx); /* resolves NULL and the default handles; NULL: invalid */
CUstream emu_stream_new(CUcontext ctx, unsigned flags, int priority);
CUstream emu_stream_first(void);
void emu_stream_drained(CUstream stream);              /* nothing left in a stream that is destroyed */
void emu_stream_drain(CUstream stream);                /* waits for what has been enqueued so far */
void emu_drain(struct emu_device *dev, CUcontext ctx); /* the same for all streams of either; both NULL: all */
uint64_t emu_stream_oldest(CUstream stream);           /* seq of its oldest unfinished operation, UINT64_MAX if none */
void emu_stream_own_default(int change);  /* the NULL stream means the thread's own while the sum is above 0 */
CUstream emu_stream_own(CUstream stream); /* NULL becomes CU_STREAM_PER_THREAD */

/* queue.c */
struct emu_op *emu_op_new(CUstream stream, enum emu_kind kind);
CUresult emu_enqueue(struct emu_op *op, unsigned classes);  /* takes the operation; may wait for room */
CUresult emu_enqueue_room(CUstream stream, unsigned units); /* waits for room; the stream may be gone afterwards */
void emu_op_done(struct emu_op *op);
bool emu_op_may_start(const struct emu_op *op);

/* executor.c */
void emu_pump(void); /* runs what can run at once, makes copies ready */
void emu_kick(void); /* wakes the executor */
void emu_ctx_fail(CUcontext ctx, CUresult error);

/* engine.c */
bool emu_engines_step(uint64_t now, uint64_t *next_ns); /* moves a piece for each engine that has work */
void emu_copy_prepare(struct emu_op *op);
void emu_copy_at_once(struct emu_op *op);

/* kernel.c */
bool emu_sm_try(struct emu_op *op, uint64_t now); /* starts it if thread slots are free */
void emu_sm_done(struct emu_op *op);

/* memop.c */
bool emu_memop_run(struct emu_op *op); /* false: a wait that is not satisfied */

/* event.c, hostfn.c, pool.c */
void emu_event_record(struct emu_op *op);
bool emu_event_passed(const struct emu_op *op);
void emu_event_release(CUevent event);
void emu_host_run(struct emu_op *op);
void emu_pool_retire(CUdeviceptr p);

#endif
