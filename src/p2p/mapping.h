/* SPDX-License-Identifier: Apache-2.0 */
/* Other processes' memory, opened in this one, cached by (process, buffer id).
 *
 *            progress thread            submitter
 *   (none) ─parcels come─▶ ARRIVING ─▶ OPENING (as below)
 *   (none) ─────────────────▶ OPENING ───────────▶ OPEN | FAILED
 *   OPEN, unused, too many ──▶ CLOSING ──────────▶ CLOSED (or OPEN again: something is parked, so closing would hang)
 *   CLOSED, FAILED ──────────▶ (none)
 *
 * Opening returns in 50 … 350 µs also while streams of the process are parked and while another thread sits in
 * cuMemFree (measured: test/gpu/open_parked.c); closing does not, so it waits for a quiet moment and nothing waits for
 * it. */
#ifndef HOCCL_P2P_MAPPING_H
#define HOCCL_P2P_MAPPING_H

#include "base/list.h"
#include "device/driver.h"
#include "p2p/mailbox.h"
#include "p2p/parcel.h"

enum hoccl_mapping_state {
    HOCCL_MAPPING_ARRIVING = 1,
    HOCCL_MAPPING_OPENING,
    HOCCL_MAPPING_OPEN,
    HOCCL_MAPPING_FAILED,
    HOCCL_MAPPING_CLOSING,
    HOCCL_MAPPING_CLOSED,
};

struct hoccl_mapping {
    struct hoccl_list link;
    uint64_t process, buffer;
    struct hoccl_handle handle; /* IPC */
    struct hoccl_mapping_segment {
        int fd;
        uint64_t bytes;
    } *segment;                 /* RANGE: side by side; NULL: IPC */
    uint32_t segments, arrived; /* RANGE */
    uint64_t bytes;             /* RANGE: of all segments */
    int device;                 /* RANGE: whose copies will use it */
    uint32_t state;      /* writers: see above */
    CUresult result;     /* submitter, before FAILED */
    CUdeviceptr address; /* submitter, before OPEN */
    int users;           /* progress thread */
};

struct hoccl_submitter;

struct hoccl_mappings {
    struct hoccl_list list; /* oldest use first; progress thread */
    int count;
    struct hoccl_submitter *submitter;
};

void hoccl_mappings_open(struct hoccl_mappings *m, struct hoccl_submitter *submitter);

/* Close all, the submitter having ended; only inside hoccl_parking_quiet. */
void hoccl_mappings_close(struct hoccl_mappings *m);

/* Progress thread: the mapping of a buffer, perhaps still OPENING, now used once more. *mapping stays NULL with SUCCESS
 * if the submitter's ring is full: ask again. */
HOCCL_Result hoccl_mapping_get(struct hoccl_mappings *m, uint64_t process, uint64_t buffer,
                               const struct hoccl_handle *handle, struct hoccl_mapping **mapping);
void hoccl_mapping_put(struct hoccl_mappings *m, struct hoccl_mapping *mapping);

/* Progress thread: take the parcels that have come from a process, and let ranges that are complete be opened for copies
 * by `device`. Then hoccl_mapping_find: the mapping of a buffer, or of a range that has come whole, now used once more; else NULL. */
HOCCL_Result hoccl_mappings_receive(struct hoccl_mappings *m, uint64_t process, int socket, int device);
struct hoccl_mapping *hoccl_mapping_find(struct hoccl_mappings *m, uint64_t process, uint64_t buffer);

/* Submitter: the driver calls. */
void hoccl_mapping_open(struct hoccl_mapping *mapping);
void hoccl_mapping_close(struct hoccl_mapping *mapping);

#endif
