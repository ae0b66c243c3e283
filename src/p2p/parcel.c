/* SPDX-License-Identifier: Apache-2.0 */
/* See parcel.h. */
#define _GNU_SOURCE
#include "p2p/parcel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x4c435250u /* "PRCL" */
#define SEND_MS 1000

/* ---- exporting (submitter) --------------------------------------------------------------------------------------- */

/* The segment that holds `at`: its end, and a descriptor of it. */
static CUresult export_segment(CUdeviceptr at, CUdeviceptr *end, int *fd)
{
    CUmemGenericAllocationHandle h;
    CUdeviceptr base;
    size_t bytes;
    CUresult r = hoccl_driver.MemGetAddressRange(&base, &bytes, at);
    if (r)
        return r;
    r = hoccl_driver.MemRetainAllocationHandle(&h, (void *)(uintptr_t)at);
    if (r)
        return r;
    r = hoccl_driver.MemExportToShareableHandle(fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    hoccl_driver.MemRelease(h);
    *end = base + bytes;
    return r;
}

static uint32_t count_segments(const struct hoccl_dispatch *d)
{
    uint32_t n = 0;
    CUdeviceptr at = d->base, base;
    size_t bytes;
    while (at < d->base + d->bytes && !hoccl_driver.MemGetAddressRange(&base, &bytes, at)) {
        at = base + bytes;
        n++;
    }
    return n;
}

static bool send_parcel(int socket, const struct hoccl_parcel *p, const int *fds)
{
    char control[CMSG_SPACE(HOCCL_PARCEL_SEGMENTS * sizeof(int))] = {0};
    size_t bytes = p->count * sizeof(int);
    struct iovec v = {(void *)p, sizeof *p};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    struct pollfd f = {.fd = socket, .events = POLLOUT};
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(c), fds, bytes);
    while (sendmsg(socket, &m, MSG_NOSIGNAL) != (ssize_t)sizeof *p)
        if ((errno != EAGAIN && errno != EINTR) || poll(&f, 1, SEND_MS) <= 0)
            return false;
    return true;
}

/* Up to a message's worth of segments from *at on. */
static bool send_some(struct hoccl_dispatch *d, CUdeviceptr *at, struct hoccl_parcel *p)
{
    int fds[HOCCL_PARCEL_SEGMENTS];
    CUresult r = CUDA_SUCCESS;
    p->count = 0;
    while (!r && *at < d->base + d->bytes && p->count < HOCCL_PARCEL_SEGMENTS) {
        CUdeviceptr end = 0;
        r = export_segment(*at, &end, &fds[p->count]);
        if (r)
            break;
        p->bytes[p->count++] = end - *at;
        *at = end;
    }
    bool sent = !r && send_parcel(d->socket, p, fds);
    if (r)
        snprintf(d->text, sizeof d->text, "exporting its memory: %s", hoccl_driver_error(r));
    else if (!sent)
        snprintf(d->text, sizeof d->text, "sending its memory's descriptors: %s", strerror(errno));
    for (uint32_t i = 0; i < p->count; i++)
        close(fds[i]);
    return sent;
}

void hoccl_dispatch_run(struct hoccl_dispatch *d)
{
    struct hoccl_parcel p = {.magic = MAGIC, .key = d->key, .total = count_segments(d)};
    CUdeviceptr at = d->base;
    bool good = true;
    while (good && at < d->base + d->bytes) {
        good = send_some(d, &at, &p);
        p.first += p.count;
    }
    hoccl_publish(&d->state, good ? HOCCL_DISPATCH_SENT : HOCCL_DISPATCH_FAILED);
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

int hoccl_parcel_take(int socket, struct hoccl_parcel *parcel, int *fds)
{
    char control[CMSG_SPACE(HOCCL_PARCEL_SEGMENTS * sizeof(int))];
    struct iovec v = {parcel, sizeof *parcel};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    size_t got = 0;
    ssize_t n = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(c), got * sizeof(int));
    }
    if (n == (ssize_t)sizeof *parcel && parcel->magic == MAGIC && got == parcel->count && parcel->first + got <= parcel->total)
        return 1;
    for (size_t i = 0; i < got; i++)
        close(fds[i]);
    return -1;
}
