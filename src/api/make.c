/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that make communicators, and those that end them. Making waits for other ranks; so what one thread makes
 * for several GPUs in a group gets a thread each, with the context current that was current at its call. */
#include "api/make.h"

#include "api/group.h"
#include "api/handle.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "base/thread.h"
#include "core/join.h"
#include "core/split.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LEAVE_TIMEOUT (500 * HOCCL_MS)

/* One communicator to be. */
struct making {
    struct making *next;
    HOCCL_Comm *out;
    HOCCL_Result (*make)(struct making *);
    /* CommInitRank */
    HOCCL_UniqueId id;
    int size, rank;
    /* CommSplit */
    HOCCL_Comm parent;
    int color, key;
    struct making *behind; /* the group's next split of the same communicator */
    bool follows;          /* it is behind another one, and runs in that one's thread */
    /* In a thread of its own. */
    CUcontext context; /* NULL: none was current */
    pthread_t thread;
    bool started;
    /* What came of it. */
    HOCCL_Result result;
    char text[HOCCL_ERROR_TEXT];
    struct hoccl_comm *comm; /* NULL with success: a split without a color */
    HOCCL_Comm handle;
};

static __thread struct making *first, *last; /* the open group's, in the order of the calls */

/* ---- making one -------------------------------------------------------------------------------------------------- */

static HOCCL_Result init_rank(struct making *m)
{
    return hoccl_join(&m->id, m->size, m->rank, &m->comm);
}

static HOCCL_Result check_color(const struct making *m)
{
    if (m->color < HOCCL_SPLIT_NOCOLOR)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "color %d: it is ≥ 0, or HOCCL_SPLIT_NOCOLOR", m->color);
    return m->out ? HOCCL_SUCCESS : hoccl_fail(HOCCL_ERR_ARGUMENT, "the new communicator's address is NULL");
}

/* The others wait for this rank, so they hear of wrong arguments too. */
static HOCCL_Result split(struct making *m)
{
    struct hoccl_comm *parent;
    HOCCL_Result r = hoccl_handle_enter(m->parent, &parent);
    if (r)
        return r;
    r = check_color(m);
    if (r)
        hoccl_comm_split_refuse(parent);
    else
        r = hoccl_comm_split(parent, m->color, m->key, &m->comm);
    hoccl_handle_leave(m->parent, parent);
    return r;
}

/* A call that will not be made: who splits with us must not wait, and must go on counting the same calls. */
static void refuse(const struct making *m)
{
    struct hoccl_comm *parent;
    char text[HOCCL_ERROR_TEXT];
    memcpy(text, hoccl_error_text(), sizeof text);
    if (m->make != split || hoccl_handle_enter(m->parent, &parent))
        return;
    hoccl_fail_again(HOCCL_ERR_USAGE, text);
    hoccl_comm_split_refuse(parent);
    hoccl_handle_leave(m->parent, parent);
}

static void run(struct making *m)
{
    m->result = m->make(m);
    if (m->result)
        memcpy(m->text, hoccl_error_text(), sizeof m->text);
}

static void *run_in_thread(void *arg)
{
    for (struct making *m = arg; m; m = m->behind) {
        if (m->context)
            hoccl_driver.CtxSetCurrent(m->context);
        run(m);
    }
    return NULL;
}

/* ---- making them all --------------------------------------------------------------------------------------------- */

/* In this thread. The context may be another one by now than at the call. */
static void run_here(struct making *m)
{
    CUcontext now = NULL;
    bool other = m->context && !hoccl_driver.CtxGetCurrent(&now) && now != m->context;
    if (other)
        hoccl_driver.CtxPushCurrent(m->context);
    run(m);
    if (other)
        hoccl_driver.CtxPopCurrent(&now);
}

/* No thread for it and those behind it. */
static void give_up(struct making *m, int e)
{
    for (; m; m = m->behind) {
        m->result = hoccl_fail(HOCCL_ERR_SYSTEM, "starting a thread to make a communicator: %s", strerror(e));
        memcpy(m->text, hoccl_error_text(), sizeof m->text);
        refuse(m);
    }
}

/* Each in a thread, but splits of one communicator one after the other, in the order of the calls; one alone in this thread: it
 * behaves as outside a group. */
static void run_all(void)
{
    if (first == last) {
        run_here(first);
        return;
    }
    for (struct making *m = first; m; m = m->next) {
        if (m->follows)
            continue;
        int e = hoccl_thread_create(&m->thread, NULL, run_in_thread, m);
        m->started = !e;
        if (e)
            give_up(m, e);
    }
    for (struct making *m = first; m; m = m->next)
        if (m->started)
            pthread_join(m->thread, NULL);
}

static HOCCL_Result first_error(void)
{
    for (const struct making *m = first; m; m = m->next)
        if (m->result)
            return hoccl_fail_again(m->result, m->text);
    return HOCCL_SUCCESS;
}

static HOCCL_Result give_handles(void)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    for (struct making *m = first; m && !r; m = m->next)
        if (m->comm)
            r = hoccl_handle_make(m->comm, false, &m->handle);
    return r;
}

/* One could not be made, so none is; the other ranks of those that were hear why. */
static void undo_all(void)
{
    for (struct making *m = first; m; m = m->next) {
        struct hoccl_comm *comm = m->comm;
        if (!comm)
            continue;
        if (m->handle)
            hoccl_handle_retire(m->handle, LEAVE_TIMEOUT, NULL, &comm);
        hoccl_comm_fail(comm, hoccl_fail(HOCCL_ERR_PEER, "another communicator of the same group could not be made"));
        hoccl_comm_abort(comm);
    }
}

static HOCCL_Result make_all(void)
{
    run_all();
    HOCCL_Result r = first_error();
    if (!r)
        r = give_handles();
    if (r) {
        char text[HOCCL_ERROR_TEXT];
        memcpy(text, hoccl_error_text(), sizeof text);
        undo_all();
        return hoccl_fail_again(r, text);
    }
    for (struct making *m = first; m; m = m->next)
        *m->out = m->handle;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_make_all(void)
{
    return first ? make_all() : HOCCL_SUCCESS;
}

void hoccl_make_refuse(void)
{
    for (const struct making *m = first; m; m = m->next)
        refuse(m);
}

void hoccl_make_forget(void)
{
    while (first) {
        struct making *m = first;
        first = m->next;
        free(m);
    }
    last = NULL;
}

/* Behind the group's last split of the same communicator. */
static void follow(struct making *m)
{
    struct making *p = first;
    while (p && (p->make != split || p->parent != m->parent || p->behind))
        p = p->next;
    if (p)
        p->behind = m;
    m->follows = p != NULL;
}

/* At once, or kept for the end of the open group. */
static HOCCL_Result submit(const struct making *asked)
{
    struct making *m = hoccl_alloc(sizeof *m, "a communicator");
    if (!m)
        return HOCCL_ERR_MEMORY;
    *m = *asked;
    if (!hoccl_driver_load()) /* else making it will say so, to all ranks */
        hoccl_driver.CtxGetCurrent(&m->context);
    if (m->make == split)
        follow(m);
    if (last)
        last->next = m;
    else
        first = m;
    last = m;
    if (hoccl_group_is_open())
        return HOCCL_SUCCESS;
    HOCCL_Result r = hoccl_make_all();
    hoccl_make_forget();
    return r;
}

static HOCCL_Result named(HOCCL_Result r, const char *call)
{
    if (r)
        hoccl_fail_context(r, "%s", call);
    return hoccl_group_note(r);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

HOCCL_Result HOCCL_GetUniqueId(HOCCL_UniqueId *id)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    if (!id)
        r = hoccl_fail(HOCCL_ERR_ARGUMENT, "the id's address is NULL");
    if (!r)
        r = hoccl_settings_load_once();
    if (!r)
        r = hoccl_join_make_id(id);
    return r ? hoccl_fail_context(r, "HOCCL_GetUniqueId") : r;
}

static HOCCL_Result check_init_rank(const struct making *m)
{
    if (!m->out)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the communicator's address is NULL");
    if (m->size < 1)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "%d ranks: a communicator has at least one", m->size);
    if (m->rank < 0 || m->rank >= m->size)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "rank %d: %d ranks are numbered 0 to %d", m->rank, m->size, m->size - 1);
    return hoccl_join_check_id(&m->id);
}

HOCCL_Result HOCCL_CommInitRank(HOCCL_Comm *comm, int nranks, HOCCL_UniqueId id, int rank)
{
    struct making m = {.out = comm, .make = init_rank, .id = id, .size = nranks, .rank = rank};
    HOCCL_Result r = check_init_rank(&m);
    if (!r)
        r = hoccl_handle_check_process();
    if (!r)
        r = hoccl_settings_load_once();
    if (!r)
        r = submit(&m);
    return named(r, "HOCCL_CommInitRank");
}

HOCCL_Result HOCCL_CommSplit(HOCCL_Comm comm, int color, int key, HOCCL_Comm *newcomm)
{
    struct making m = {.out = newcomm, .make = split, .parent = comm, .color = color, .key = key};
    return named(submit(&m), "HOCCL_CommSplit");
}

static HOCCL_Result finalize(HOCCL_Comm handle)
{
    struct hoccl_comm *c;
    if (hoccl_group_is_open())
        return hoccl_fail(HOCCL_ERR_USAGE, "a group is open in this thread: HOCCL_GroupEnd comes first");
    HOCCL_Result r = hoccl_handle_enter(handle, &c);
    if (r)
        return r;
    hoccl_publish(&c->finalized, 1);
    hoccl_comm_end_posting(c);
    hoccl_publish(&c->busy, 0);
    r = hoccl_comm_wait(c);
    hoccl_handle_unuse(handle);
    return r;
}

HOCCL_Result HOCCL_CommFinalize(HOCCL_Comm comm)
{
    HOCCL_Result r = finalize(comm);
    return r ? hoccl_fail_context(r, "HOCCL_CommFinalize") : r;
}

/* Wait with the handle still valid, so that another thread can abort. */
static HOCCL_Result wait_for_operations(HOCCL_Comm handle)
{
    struct hoccl_comm *c;
    HOCCL_Result r = hoccl_handle_use(handle, &c);
    if (r)
        return r;
    if (!hoccl_observe(&c->finalized)) {
        hoccl_handle_unuse(handle);
        return finalize(handle);
    }
    r = hoccl_comm_wait(c);
    hoccl_handle_unuse(handle);
    return r;
}

static HOCCL_Result destroy(HOCCL_Comm handle)
{
    struct hoccl_comm *c;
    if (handle == HOCCL_COMM_WORLD)
        return hoccl_fail(HOCCL_ERR_USAGE, "HOCCL_COMM_WORLD is freed by HOCCL_Finalize");
    if (hoccl_group_is_open())
        return hoccl_fail(HOCCL_ERR_USAGE, "a group is open in this thread: HOCCL_GroupEnd comes first");
    HOCCL_Result r = wait_for_operations(handle);
    if (r == HOCCL_ERR_USAGE || r == HOCCL_ERR_ARGUMENT)
        return r;
    char text[HOCCL_ERROR_TEXT];
    memcpy(text, hoccl_error_text(), sizeof text);
    HOCCL_Result retired = hoccl_handle_retire(handle, LEAVE_TIMEOUT, NULL, &c);
    if (retired)
        return r ? hoccl_fail_again(r, text) : retired;
    return hoccl_comm_close(c);
}

HOCCL_Result HOCCL_CommDestroy(HOCCL_Comm comm)
{
    HOCCL_Result r = destroy(comm);
    return r ? hoccl_fail_context(r, "HOCCL_CommDestroy") : r;
}
