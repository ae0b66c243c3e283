/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC. A handle names the exporting process (pid and nonce) and its store; whoever opens it connects to that
 * process's abstract socket and is sent the store's descriptor:
 *
 *     opener                                   exporter, a thread of its own
 *     connect "\0hoccl-emu-PID-NONCE"  ----->  accept
 *     number of the store              ----->
 *                                      <-----  one byte (1: here it is) and, by SCM_RIGHTS, the memfd
 *
 * The handle is the allocation's, whatever address in it was asked about: the opener gets its first byte and has to
 * know the offset by itself. A process cannot open its own handle (CUDA_ERROR_INVALID_CONTEXT); opening one again
 * gives the same address and counts.
 */
#define _GNU_SOURCE
#include "device.h"
#include "memory.h"
#include "socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x3163706975636f68u /* "hocuipc1" */
#define GRAIN (2u << 20)

struct handle {
    uint64_t magic, machine, nonce, store, size;
    int32_t pid, gpu;
};
_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "handle does not fit");

static int listener = -1;

static void name_of(pid_t pid, uint64_t nonce, char name[64])
{
    snprintf(name, 64, "hoccl-emu-%d-%016llx", (int)pid, (unsigned long long)nonce);
}

static void serve(int socket)
{
    uint64_t id;
    if (!emu_socket_same_user(socket) || !emu_socket_readable(socket) || recv(socket, &id, sizeof id, 0) != sizeof id)
        return;
    pthread_mutex_lock(&emu.lock);
    struct emu_store *store = emu_store_find(id);
    int fd = store && store->fd >= 0 && !store->foreign && !emu_store_dead(store) ? dup(store->fd) : -1;
    pthread_mutex_unlock(&emu.lock);
    emu_socket_send(socket, &fd, fd >= 0);
    if (fd >= 0)
        close(fd);
}

static void *server(void *arg)
{
    (void)arg;
    for (;;) {
        int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0 && errno != EINTR && errno != ECONNABORTED)
            usleep(10000); /* out of descriptors: later */
        if (socket < 0)
            continue;
        serve(socket);
        close(socket);
    }
    return NULL;
}

static bool server_start(void)
{
    char name[64];
    if (listener >= 0)
        return true;
    name_of(emu.pid, emu.nonce, name);
    listener = emu_socket_listen(name);
    if (listener >= 0)
        emu_thread_start(server, NULL, "emu-ipc");
    return listener >= 0;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at(p);
    if (!out || !range || range->kind != EMU_ALLOC)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (!server_start())
        return emu_leave(CUDA_ERROR_OPERATING_SYSTEM);
    struct handle h = {MAGIC, emu.machine, emu.nonce, range->store->id, range->size, emu.pid, range->store->gpu};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return emu_leave(CUDA_SUCCESS);
}

/* Asks the exporter for the descriptor; -1: it is gone, or the memory is. */
static int fetch(const struct handle *h)
{
    char name[64];
    name_of(h->pid, h->nonce, name);
    int fd = -1, socket = emu_socket_connect(name);
    if (socket < 0)
        return -1;
    if (send(socket, &h->store, sizeof h->store, MSG_NOSIGNAL) != sizeof h->store || !emu_socket_readable(socket) ||
        emu_socket_receive(socket, &fd, 1) != 1)
        fd = -1;
    close(socket);
    return fd;
}

static struct emu_range *opened(const struct emu_store *store)
{
    CUdeviceptr at = 0;
    struct emu_range *range;
    while ((range = emu_range_next(at)) != NULL) {
        if (range->kind == EMU_IPC && range->store == store)
            return range;
        at = range->base + range->size;
    }
    return NULL;
}

/* Maps the store, or counts another opening of it. */
static CUresult map(CUcontext ctx, int fd, CUdeviceptr *out)
{
    struct emu_store *store = emu_store_import(fd);
    struct emu_range *range = store ? opened(store) : NULL;
    if (!store)
        return CUDA_ERROR_INVALID_HANDLE;
    if (range) {
        emu_store_put(store);
        range->opens++;
        *out = range->base;
        return CUDA_SUCCESS;
    }
    CUdeviceptr base = emu_space_reserve((store->size + GRAIN - 1) / GRAIN * GRAIN, GRAIN);
    range = base ? emu_range_add(base, store->size, EMU_IPC, store) : NULL;
    if (!range) {
        emu_store_put(store);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->ctx = ctx;
    range->opens = 1;
    emu_range_expose(range, true);
    *out = base;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    struct handle h;
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&h, &handle, sizeof h);
    if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || h.magic != MAGIC || h.machine != emu.machine)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (h.pid == emu.pid && h.nonce == emu.nonce)
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!emu.set.p2p && h.gpu != ctx->dev->gpu)
        return emu_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    emu_hazard_pass();
    pthread_mutex_unlock(&emu.lock);
    int fd = fetch(&h);
    pthread_mutex_lock(&emu.lock);
    return emu_leave(fd < 0 ? CUDA_ERROR_INVALID_HANDLE : map(ctx, fd, out));
}

CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at(p);
    if (!range || range->base != p || range->kind != EMU_IPC)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    emu_hazard_take(NULL);
    range = emu_range_at(p);
    if (range && range->base == p && --range->opens == 0) {
        size_t size = range->size;
        emu_range_expose(range, false);
        emu_range_remove(range);
        emu_space_retire(p, (size + GRAIN - 1) / GRAIN * GRAIN);
    }
    emu_hazard_give();
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
    (void)out;
    (void)event;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    (void)out;
    (void)handle;
    return CUDA_ERROR_NOT_SUPPORTED;
}
