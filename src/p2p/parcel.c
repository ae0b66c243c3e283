/* SPDX-License-Identifier: Apache-2.0 */
/* See parcel.h. */
#include "p2p/parcel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAGIC 0x4c435250u /* "PRCL" */

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
    bool sent = !r && hoccl_descriptors_send(d->socket, p, sizeof *p, fds, p->count);
    if (r)
        snprintf(d->text, sizeof d->text, "exporting its memory: %s", hoccl_driver_error(r));
    else if (!sent)
        snprintf(d->text, sizeof d->text, "sending its memory's descriptors: %s", strerror(errno));
    hoccl_descriptors_close(fds, p->count);
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
    unsigned got;
    int n = hoccl_descriptors_take(socket, parcel, sizeof *parcel, fds, &got);
    if (n <= 0 || (parcel->magic == MAGIC && got == parcel->count && parcel->first + got <= parcel->total))
        return n;
    hoccl_descriptors_close(fds, got);
    return -1;
}
