/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that has no legacy handle travels as file descriptors (cuMemCreate with a descriptor type; PyTorch's expandable
 * segments are such), over a socket of each pair of ranks; never by pidfd or ptrace, which containers refuse.
 *
 *   data's sender                                     data's receiver
 *   sees a grant of kind RANGE, knows no mapping of its key
 *   offer.kind ← WANTED, tag ← n ───────────────────▶ its submitter walks the range, exports every segment
 *                          ◀── parcels{key, sizes} + descriptors ── on the parcel socket
 *   sees the receipt n, takes the parcels  ◀──────── receipt.tag ← n
 *   its submitter maps all segments side by side; from then on the range is known by its key
 *
 * The key is made of the segments' buffer ids, which the driver never gives twice: a range that is mapped anew is a new
 * key. */
#ifndef HOCCL_P2P_PARCEL_H
#define HOCCL_P2P_PARCEL_H

#include "base/atomic.h"
#include "base/descriptors.h"
#include "device/driver.h"

#include <stdbool.h>

#define HOCCL_PARCEL_SEGMENTS HOCCL_DESCRIPTORS_MOST

/* One message; `count` descriptors travel with it. */
struct hoccl_parcel {
    uint32_t magic;
    uint32_t count;        /* segments in this message */
    uint32_t first, total; /* which of how many */
    uint64_t key;
    uint64_t bytes[HOCCL_PARCEL_SEGMENTS];
};

enum hoccl_dispatch_state { HOCCL_DISPATCH_NONE, HOCCL_DISPATCH_PENDING, HOCCL_DISPATCH_SENT, HOCCL_DISPATCH_FAILED };

/* A range to be exported and sent. PENDING ──(submitter)──▶ SENT | FAILED */
struct hoccl_dispatch {
    uint32_t state;
    int socket;
    uint64_t key;
    CUdeviceptr base;
    uint64_t bytes;
    char text[160]; /* why FAILED; submitter */
};

/* Submitter: export and send. */
void hoccl_dispatch_run(struct hoccl_dispatch *d);

/* One message, if there is one: 1; 0: none; −1: what came is none. fds: room for HOCCL_PARCEL_SEGMENTS. */
int hoccl_parcel_take(int socket, struct hoccl_parcel *parcel, int *fds);

#endif
