/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand, for the tests of this transport; nothing else calls them. */
#include "transport/verbs.h"

struct hoccl_verbs_fault hoccl_verbs_fault;

/* A queue pair in error flushes what it is given: a completion with an error comes also if nothing was under way. */
void hoccl_verbs_break_lane(struct hoccl_connection *c, int lane)
{
    struct hoccl_queue *q = lane < 0 ? c->control : c->lane[lane];
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    hoccl_queue_halt(q);
    if (hoccl_queue_room(q, 1))
        hoccl_queue_post(q, &wr, (struct hoccl_flight){.kind = HOCCL_FLIGHT_BEAT});
}

int hoccl_verbs_mtu(const struct hoccl_connection *c)
{
    return 128 << (int)hoccl_mtu_choose((enum ibv_mtu)c->call.mine.mtu, (enum ibv_mtu)c->call.theirs.mtu, 0);
}
