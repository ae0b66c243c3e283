/* SPDX-License-Identifier: Apache-2.0 */
/* Seeing whether bytes that leave this GPU arrive and come back: drivers say that GPUs can access one another also where an
 * IOMMU or a switch's access control sends the bytes elsewhere. What is sent are words of the gate's table, in which word i
 * is i, so neither zeros nor what was there before pass for them. Nothing here needs SMs.
 *
 * May block like any copy of the process: call it from the submitter, or while a communicator is made. */
#ifndef HOCCL_P2P_REACH_H
#define HOCCL_P2P_REACH_H

#include "stream/gate.h"

#define HOCCL_REACH_LINE 64u
#define HOCCL_REACH_FIRSTS (65536u - HOCCL_REACH_LINE / 4) /* words with which a line can begin */

struct hoccl_reach {
    const struct hoccl_gate *gate;
    struct hoccl_flag_pool *flags;
    struct hoccl_device_memory memory; /* lines of this GPU */
    CUstream stream;
    struct hoccl_flag landing;
    bool stuck; /* a copy has not ended in time: it may still run, so nothing that it uses is given back */
};

/* With `lines` lines. False: it cannot be tried; close it nevertheless. A copy that does not end within 5 s counts as one
 * that cannot be tried; its memory is then kept until the process ends. */
bool hoccl_reach_open(struct hoccl_reach *reach, const struct hoccl_device *device, const struct hoccl_gate *gate,
                      struct hoccl_flag_pool *flags, int lines);
void hoccl_reach_close(struct hoccl_reach *reach);

/* Push the line that begins with word `first` to `there`, and pull it back into line i. False: the driver refuses. */
bool hoccl_reach_try(struct hoccl_reach *reach, uint32_t first, CUdeviceptr there, int i);

/* Is line i another than that which begins with word `first`? False also where it cannot be read. */
bool hoccl_reach_lost(struct hoccl_reach *reach, int i, uint32_t first);

/* All of this for one line `there`: false if bytes that are pushed there do not come back; true also where that cannot be tried. */
bool hoccl_reach_confirm(const struct hoccl_device *device, const struct hoccl_gate *gate, struct hoccl_flag_pool *flags,
                         CUdeviceptr there);

/* Where line i of some memory is. */
static inline CUdeviceptr hoccl_reach_line(CUdeviceptr base, int i)
{
    return base + (CUdeviceptr)i * HOCCL_REACH_LINE;
}

#endif
