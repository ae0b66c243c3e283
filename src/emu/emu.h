/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated CUDA driver: what all its files share. One lock guards every object of the process; one thread, the
 * executor, moves bytes (it lets go of the lock while it does) and looks at parked waits; callers only enqueue, and
 * run by themselves what takes no time (executor.c). Nothing here includes anything of HOCCL but its cuda.h.
 */
#ifndef EMU_H
#define EMU_H

#ifdef EMU_RENAME
#include "emu/rename.h" /* made: the functions of cuda.h get the prefix emu_, entry.c has the exported ones */
#endif

#include "cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define EMU_MAX_DEVICES 64
#define EMU_MAX_CONNECTIONS 32
#define EMU_HOST (-1) /* in place of a GPU's number: host memory */

/* Classes of hardware channel; all but the first are also the engines of a GPU. */
enum emu_class { EMU_COMPUTE, EMU_PUSH, EMU_PULL, EMU_D2H, EMU_H2D, EMU_CLASSES };

/* What RDMA devices may do with a GPU's memory: nothing; only by its address; by a dma-buf too; by one over PCIe. */
enum emu_rdma { EMU_RDMA_OFF, EMU_RDMA_ADDRESS, EMU_RDMA_DMABUF, EMU_RDMA_PCIE };

/* What the environment says (settings.c), read once by cuInit. */
struct emu_settings {
    int gpus;                   /* HOCCL_EMU_DEVICES: GPUs of the machine */
    unsigned connections;       /* CUDA_DEVICE_MAX_CONNECTIONS: channels of a class */
    uint64_t memory;            /* HOCCL_EMU_MEMORY, MiB there: bytes of a GPU's memory */
    uint64_t rate[EMU_CLASSES]; /* HOCCL_EMU_RATE, MB/s there: bytes per second of an engine, 0: as memory allows */
    unsigned sms;               /* HOCCL_EMU_SMS */
    uint64_t seed;              /* HOCCL_EMU_SEED: pattern of new memory, order of pieces, delays */
    unsigned delay_us;          /* HOCCL_EMU_DELAY_US: each copy starts up to so much later */
    unsigned look_ms;           /* HOCCL_EMU_LOOK_MS: how often the GPU looks at what parked waits wait for; 0: always */
    bool peermem;               /* HOCCL_EMU_PEERMEM: the CPU may touch GPU memory */
    bool reuse;                 /* HOCCL_EMU_REUSE: a freed address is given out again at once */
    bool lazy;                  /* HOCCL_EMU_LAZY: a function's first launch loads it, under the driver's lock */
    enum emu_rdma rdma[EMU_MAX_DEVICES]; /* HOCCL_EMU_RDMA, by GPU of the machine */
    int order[EMU_MAX_DEVICES];          /* HOCCL_EMU_RDMA_ORDER: CU_GPU_DIRECT_RDMA_WRITES_ORDERING_… */
    bool p2p;                   /* HOCCL_EMU_P2P=0: no GPU can access another */
};

struct emu_device;
struct emu_op;

struct emu {
    pthread_mutex_t lock;
    pthread_cond_t work;     /* the executor sleeps here */
    pthread_cond_t progress; /* callers wait here: for an operation, for room in a queue, for the driver's lock */
    unsigned waiters;        /* callers at progress */
    bool ready;              /* cuInit has succeeded */
    pid_t pid;               /* of the process that called cuInit: a child after fork may not use it */
    uint64_t nonce;          /* tells this process from an earlier one with the same pid */
    uint64_t machine;        /* its number: processes of another one get no memory from here */
    struct emu_settings set;
    struct emu_device *device[EMU_MAX_DEVICES]; /* the visible ones */
    int devices;
    uint64_t seq;     /* operations, in order of their enqueueing */
    uint64_t ids;     /* buffer, stream and context numbers: never the same twice */
    CUstream busy;    /* the streams that have work */
    bool contended;   /* something waits for another process, which will not wake us */
    unsigned waiting; /* streams that have a wait in their queue */
    uint64_t parked;  /* waits that stand at the head of their stream, unsatisfied */
};

extern struct emu emu;

/* Every entry point begins with one of these: the lock is held afterwards if they return CUDA_SUCCESS. */
CUresult emu_enter(void);             /* cuInit must have been called */
CUresult emu_enter_ctx(CUcontext *c); /* and a context be current, in good health */
CUresult emu_leave(CUresult result);  /* gives the lock back, returns result */

/* Waits for something to change; the lock is held before and after. */
void emu_wait(void);
void emu_changed(void); /* wakes those who wait */

/* The driver's process-wide lock, held by cuMemFree and its like while they wait for the GPU (hazard.c). */
void emu_hazard_take(struct emu_device *dev); /* dev NULL: waits for all devices */
void emu_hazard_hold(void);                   /* only takes it */
void emu_hazard_give(void);
void emu_hazard_pass(void); /* waits while another thread has it */

uint64_t emu_now(void);                                  /* ns */
uint64_t emu_random(uint64_t a, uint64_t b, uint64_t c); /* a function of the seed and these */
CUresult emu_settings_read(struct emu_settings *set);    /* settings.c */
CUresult emu_gpus_open(void);                            /* device.c: the visible devices */
enum emu_fault_action { EMU_NO_FAULT, EMU_LATE, EMU_VOID, EMU_STUCK };
CUresult emu_faults_read(void); /* fault.c: HOCCL_EMU_FAULT */
enum emu_fault_action emu_fault_copy(enum emu_class engine, int gpu, uint64_t n, uint64_t *us);
void emu_thread_start(void *(*body)(void *), void *arg, const char *name);

#endif
