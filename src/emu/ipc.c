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

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC 0x3163706975636f68u /* "hocuipc1" */
#define GRAIN (2u << 20)
#define PATIENCE_MS 5000

struct handle {
    uint64_t magic, nonce, store, size;
    int32_t pid, gpu;
};
_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "handle does not fit");

static int listener = -1;

static socklen_t address_of(pid_t pid, uint64_t nonce, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n =
        snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "hoccl-emu-%d-%016llx", (int)pid, (unsigned long long)nonce);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* One byte, with a descriptor if there is one. */
static void send_fd(int socket, int fd)
{
    char byte = fd >= 0;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(socket, &msg, MSG_NOSIGNAL) < 0)
        return; /* the opener has gone: its loss */
}

static int receive_fd(int socket)
{
    char byte = 0;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    int fd = -1;
    if (recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) != 1 || !byte)
        return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

static bool same_user(int socket)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) && (peer.uid == geteuid() || peer.uid == 0);
}

static void serve(int socket)
{
    uint64_t id;
    struct pollfd p = {socket, POLLIN, 0};
    if (!same_user(socket) || poll(&p, 1, PATIENCE_MS) != 1 || recv(socket, &id, sizeof id, 0) != sizeof id)
        return;
    pthread_mutex_lock(&emu.lock);
    struct emu_store *store = emu_store_find(id);
    int fd = store && store->fd >= 0 && !store->foreign && !emu_store_dead(store) ? dup(store->fd) : -1;
    pthread_mutex_unlock(&emu.lock);
    send_fd(socket, fd);
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
    struct sockaddr_un a;
    if (listener >= 0)
        return true;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t size = address_of(emu.pid, emu.nonce, &a);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, size) || listen(fd, 128)) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    listener = fd;
    emu_thread_start(server, NULL, "emu-ipc");
    return true;
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
    struct handle h = {MAGIC, emu.nonce, range->store->id, range->size, emu.pid, range->store->gpu};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return emu_leave(CUDA_SUCCESS);
}

/* Asks the exporter for the descriptor; -1: it is gone, or the memory is. */
static int fetch(const struct handle *h)
{
    struct sockaddr_un a;
    socklen_t size = address_of(h->pid, h->nonce, &a);
    int fd = -1, socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct pollfd p = {socket_fd, POLLIN, 0};
    if (socket_fd < 0)
        return -1;
    if (!connect(socket_fd, (struct sockaddr *)&a, size) && same_user(socket_fd) &&
        send(socket_fd, &h->store, sizeof h->store, MSG_NOSIGNAL) == sizeof h->store && poll(&p, 1, PATIENCE_MS) == 1)
        fd = receive_fd(socket_fd);
    close(socket_fd);
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
    if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || h.magic != MAGIC)
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
