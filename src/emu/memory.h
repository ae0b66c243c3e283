/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory. A store is bytes of one GPU (or of the host): one memfd, mapped once for the engines. A range is a piece of
 * the process's address space through which programs name bytes of a store; for GPU memory it is PROT_NONE, so that
 * only engines can read it. All under emu.lock.
 */
#ifndef EMU_MEMORY_H
#define EMU_MEMORY_H

#include "emu.h"

/* The last page of a store's memfd: what another process that maps it must know. Written by the owner. */
struct emu_tail {
    uint64_t magic;
    uint64_t machine;
    uint64_t size;
    int32_t gpu;    /* machine-wide number */
    uint32_t freed; /* by cuMemFree: engines of other processes fault from then on; atomic */
};

struct emu_store {
    struct emu_store *next;
    int refs;
    uint64_t id; /* for handles */
    int fd;      /* -1: host memory */
    dev_t dev;
    ino_t ino;
    size_t size;
    int gpu;
    unsigned char *bytes;  /* the engines' mapping */
    struct emu_tail *tail; /* NULL: host memory */
    bool foreign;          /* another process's */
    unsigned handle_types; /* of cuMemCreate: what it may be exported as */
    bool rdma;
    bool pool; /* of cuMemAllocAsync */
};

enum emu_range_kind { EMU_ALLOC, EMU_IPC, EMU_VMM, EMU_POOL, EMU_MANAGED, EMU_HOST_ALLOC, EMU_HOST_REGISTERED };

struct emu_range {
    CUdeviceptr base;
    size_t size;
    enum emu_range_kind kind;
    struct emu_store *store;
    size_t offset; /* of base in the store */
    uint64_t id;   /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    CUcontext ctx;
    unsigned flags;
    uint64_t access; /* EMU_VMM: bit d, visible device d may use it */
    int opens;       /* EMU_IPC */
    bool sync_memops;
};

/* store.c */
struct emu_store *emu_store_create(int gpu, size_t size); /* NULL: out of memory */
struct emu_store *emu_store_host(void *bytes, size_t size);
void emu_store_fill(struct emu_store *store); /* with the pattern of new memory */
struct emu_store *emu_store_import(int fd);   /* takes fd; the same object again if it is known; NULL: not ours */
struct emu_store *emu_store_find(uint64_t id);
void emu_store_get(struct emu_store *store);
void emu_store_put(struct emu_store *store);
void emu_store_mark_freed(struct emu_store *store);
bool emu_store_dead(const struct emu_store *store);

/* range.c */
CUdeviceptr emu_space_reserve(size_t size, size_t align); /* 0: none left */
void emu_space_retire(CUdeviceptr base, size_t size);     /* never to be used again (HOCCL_EMU_REUSE: soon) */
bool emu_space_ours(CUdeviceptr p);                       /* reserved or retired: not a host pointer */
struct emu_range *emu_range_add(CUdeviceptr base, size_t size, enum emu_range_kind kind, struct emu_store *store);
struct emu_range *emu_range_at(CUdeviceptr p);   /* the range that p lies in, or NULL */
struct emu_range *emu_range_next(CUdeviceptr p); /* the first that ends behind p */
void emu_range_remove(struct emu_range *range);
void emu_range_expose(const struct emu_range *range, bool on); /* lets the CPU in, if the setting says so */
int emu_range_gpu(const struct emu_range *range);
bool emu_range_span(CUdeviceptr p, size_t bytes); /* every byte lies in some range */
unsigned char *emu_range_bytes(CUdeviceptr p, size_t *left, struct emu_store **store); /* NULL: none, or freed */

/* memory.c */
CUresult emu_alloc(struct emu_device *dev, CUcontext ctx, size_t size, enum emu_range_kind kind, CUdeviceptr *out);
void emu_free_range(struct emu_range *range); /* of emu_alloc's */

#endif
