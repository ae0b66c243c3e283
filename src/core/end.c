/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's error, its end, and what is freed then. (comm.c makes it.) */
#include "core/comm.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "core/proxy.h"
#include "core/register.h"
#include "stream/parking.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ABORT_DRAIN (1 * HOCCL_S)
#define PREPARED (3 * HOCCL_S)

/* A board of this process is used by several of its ranks; the last one to leave unmaps it. */
static void leave_shared(struct hoccl_board *board, size_t bytes, bool ready)
{
    bool registered;
    if (hoccl_board_leave(board, ready, &registered))
        hoccl_stage_discard(board, bytes, registered);
}

static void leave_board(struct hoccl_comm *c, struct hoccl_peer *p)
{
    bool ready = hoccl_observe(&p->view.state) == HOCCL_STAGE_READY;
    if (!p->board || p->board == c->board || p->far)
        return;
    if (p->same_process)
        leave_shared(p->board, p->board_bytes, ready);
    else
        hoccl_stage_discard(p->board, p->board_bytes, ready);
}

static void leave_own_board(struct hoccl_comm *c)
{
    bool ready = hoccl_observe(&c->stage.view.state) == HOCCL_STAGE_READY;
    if (c->peers)
        ready |= hoccl_observe(&c->peers[c->rank].view.state) == HOCCL_STAGE_READY;
    leave_shared(c->board, c->board_bytes, ready);
}

void hoccl_comm_free(struct hoccl_comm *c)
{
    bool pushed = false;
    if (c->gpu && hoccl_device_enter(&c->gpu->device, &pushed))
        pushed = false;
    for (int p = 0; p < c->size && c->peers; p++)
        leave_board(c, &c->peers[p]);
    if (c->board)
        leave_own_board(c);
    hoccl_device_leave(pushed);
    if (c->board_fd >= 0)
        close(c->board_fd);
    hoccl_comm_deregister_all(c);
    hoccl_abroad_free(c);
    if (c->links)
        hoccl_node_disconnect(c->links, c->size);
    for (int i = 0; i < c->streams_used && c->gpu; i++)
        hoccl_handshake_close(&c->streams[i].handshake, &c->gpu->flags);
    hoccl_hold_fini(&c->hold);
    pthread_mutex_destroy(&c->inbox_lock);
    pthread_mutex_destroy(&c->registered_lock);
    free(c->streams);
    free(c->links);
    free(c->peers);
    free(c->layout);
    free(c);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

void hoccl_comm_fail(struct hoccl_comm *comm, HOCCL_Result result)
{
    if (!hoccl_take(&comm->failing, 0, 1))
        return;
    snprintf(comm->error_text, sizeof comm->error_text, "%.*s", (int)sizeof comm->error_text - 1, hoccl_error_text());
    hoccl_publish(&comm->error, (uint32_t)result);
    hoccl_parking_stir();
    hoccl_proxy_ring(comm);
}

HOCCL_Result hoccl_comm_error(struct hoccl_comm *comm)
{
    HOCCL_Result r = (HOCCL_Result)hoccl_observe(&comm->error);
    return r ? hoccl_fail_again(r, comm->error_text) : HOCCL_SUCCESS;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static bool is_preparing(const struct hoccl_comm *c)
{
    bool any = hoccl_observe(&c->stage.view.state) == HOCCL_STAGE_PREPARING;
    for (int p = 0; p < c->size; p++)
        any |= hoccl_observe(&c->peers[p].view.state) == HOCCL_STAGE_PREPARING;
    return any;
}

/* The submitter may still be pinning staging memory for a message that has ended without it (detour.h). False: the driver does not
 * return from it in so many ns, and the memory must stay. */
static bool await_prepared(const struct hoccl_comm *c, uint64_t limit)
{
    uint64_t begun = hoccl_now();
    while (is_preparing(c) && hoccl_now() - begun < limit)
        hoccl_sleep(100 * HOCCL_US);
    return !is_preparing(c);
}

static HOCCL_Result leave(struct hoccl_comm *comm, HOCCL_Result result, enum hoccl_parting how, uint64_t limit)
{
    struct hoccl_gpu *gpu = comm->gpu;
    char text[HOCCL_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", hoccl_error_text());
    if (hoccl_abroad_part(comm, how) && !result) {
        result = HOCCL_ERR_PEER;
        snprintf(text, sizeof text, "%s", hoccl_error_text());
    }
    hoccl_proxy_detach(comm);
    hoccl_hold_say(&comm->hold);
    if (hoccl_board_state(comm->board) == HOCCL_BOARD_OPEN) /* else peers shall go on hearing why */
        hoccl_board_say(comm->board, HOCCL_BOARD_CLOSED, NULL);
    if (await_prepared(comm, limit))
        hoccl_comm_free(comm);
    else
        hoccl_log(HOCCL_LOG_WARN, "rank %d: the CUDA driver has not returned from pinning staging memory: the communicator's memory is "
                  "kept. Another thread of this process may sit in cudaFree, cudaFreeHost or a module load behind a stream that waits",
                  comm->rank);
    HOCCL_Result r = hoccl_gpu_close(gpu);
    return result ? hoccl_fail_again(result, text) : r;
}

void hoccl_comm_end_posting(struct hoccl_comm *comm)
{
    hoccl_hold_lift(&comm->hold);
    for (int p = 0; p < comm->size; p++) {
        struct hoccl_totals *t = &comm->board->ring[p].totals;
        t->sends = comm->peers[p].sends;
        t->receives = comm->peers[p].receives;
        hoccl_publish(&t->final, 1);
    }
    hoccl_abroad_end_posting(comm);
}

HOCCL_Result hoccl_comm_wait(struct hoccl_comm *comm)
{
    uint64_t nap = 10 * HOCCL_US;
    while (hoccl_observe(&comm->unfinished) && !hoccl_observe(&comm->error)) {
        if (hoccl_observe(&comm->abort))
            return hoccl_fail(HOCCL_ERR_PEER, "another thread has aborted the communicator");
        hoccl_sleep(nap);
        nap = nap < HOCCL_MS ? nap * 2 : nap;
    }
    return hoccl_comm_error(comm);
}

HOCCL_Result hoccl_comm_close(struct hoccl_comm *comm)
{
    HOCCL_Result r = hoccl_comm_wait(comm);
    if (!r)
        return leave(comm, HOCCL_SUCCESS, HOCCL_PARTING_WHOLE, PREPARED);
    char text[HOCCL_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", hoccl_error_text());
    hoccl_comm_abort(comm);
    return hoccl_fail_again(r, text);
}

void hoccl_comm_stop(struct hoccl_comm *comm)
{
    hoccl_publish(&comm->abort, 1);
    hoccl_parking_stir();
    hoccl_proxy_ring(comm);
}

HOCCL_Result hoccl_comm_abort(struct hoccl_comm *comm)
{
    uint64_t begun = hoccl_now(), taken;
    hoccl_comm_stop(comm);
    hoccl_abroad_part(comm, HOCCL_PARTING_SOON); /* then no NIC reads or writes registered memory for it any more */
    while (!hoccl_observe(&comm->drained) || hoccl_observe(&comm->unfinished)) {
        hoccl_sleep(20 * HOCCL_US);
        if (hoccl_now() - begun > ABORT_DRAIN)
            return hoccl_fail(HOCCL_ERR_TIMEOUT,
                              "aborted: every stream has been released, but a peer (or this rank's copy engine) has not stopped "
                              "within %llu s: the buffers of failed operations may still be written until it ends",
                              (unsigned long long)(ABORT_DRAIN / HOCCL_S));
    }
    taken = hoccl_now() - begun;
    return leave(comm, HOCCL_SUCCESS, HOCCL_PARTING_SOON, taken < ABORT_DRAIN ? ABORT_DRAIN - taken : 0);
}
