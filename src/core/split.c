/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting, over the sockets and connections that the parent's ranks hold to one another; no launcher, no listener, no id:
 *
 *   step 0, all ranks of the parent:  ── (color, key) ──▶   everyone knows its members and their order
 *   step 1, the members:              ── cards ─────────▶   the exchange that opens a communicator (core/comm.c)
 *
 * The new communicator has sockets and boards of its own, so the parent may be destroyed first. */
#include "core/split.h"

#include "base/error.h"
#include "base/setting.h"
#include "boot/gather.h"

#include <stdlib.h>
#include <string.h>

struct choice {
    int32_t color, key;
};

/* One call. */
struct split {
    struct hoccl_comm *parent;
    struct hoccl_gather gather;
    struct choice *choices; /* by rank of the parent */
    int *ranks;             /* of the parent: all of them, then the members in their new order */
};

/* The parent's end is the end of the call. What the others do is seen on their sockets. */
static HOCCL_Result check_parent(void *arg)
{
    struct hoccl_comm *parent = arg;
    if (hoccl_observe(&parent->abort))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "the communicator was aborted while it was split");
    return hoccl_comm_error(parent);
}

static HOCCL_Result exchange(struct hoccl_boot *boot, const void *mine, size_t bytes, void *all, uint64_t timeout)
{
    struct split *s = boot->own;
    s->gather.timeout = timeout;
    return hoccl_gather(&s->gather, mine, bytes, all);
}

static HOCCL_Result check(struct hoccl_boot *boot)
{
    return check_parent(((struct split *)boot->own)->parent);
}

static const struct hoccl_boot_ops ops = {.name = "a split", .exchange = exchange, .check = check};

static HOCCL_Result begin(struct hoccl_comm *parent, struct split *s)
{
    *s = (struct split){.parent = parent};
    s->choices = hoccl_alloc((size_t)parent->size * sizeof *s->choices, "a split");
    s->ranks = hoccl_alloc((size_t)parent->size * sizeof *s->ranks, "a split");
    s->gather = (struct hoccl_gather){.name = "splitting", .links = parent->links, .ranks = s->ranks,
                                      .count = parent->size, .me = parent->rank, .call = ++parent->splits,
                                      .timeout = hoccl_settings.init_timeout, .check = check_parent, .arg = parent,
                                      .stir = hoccl_abroad_stir, .stirred = parent};
    if (!s->choices || !s->ranks)
        return HOCCL_ERR_MEMORY;
    for (int p = 0; p < parent->size; p++)
        s->ranks[p] = p;
    return HOCCL_SUCCESS;
}

static void end(struct split *s)
{
    free(s->choices);
    free(s->ranks);
}

/* Insert the members one by one; those of equal key keep the order of their ranks. */
static void choose_members(struct split *s)
{
    const struct choice *c = s->choices;
    int n = 0;
    for (int p = 0; p < s->parent->size; p++) {
        if (c[p].color != c[s->parent->rank].color)
            continue;
        int i = n++;
        for (; i > 0 && c[s->ranks[i - 1]].key > c[p].key; i--)
            s->ranks[i] = s->ranks[i - 1];
        s->ranks[i] = p;
    }
    s->gather.count = n;
    s->gather.step = 1;
    for (int i = 0; i < n; i++)
        if (s->ranks[i] == s->parent->rank)
            s->gather.me = i;
}

/* The new communicator's GPU is the parent's, whatever context is current. */
static HOCCL_Result open_members(struct split *s, struct hoccl_comm **comm)
{
    struct hoccl_boot boot = {.ops = &ops, .own = s};
    bool pushed;
    choose_members(s);
    boot.rank = boot.local_rank = s->gather.me;
    boot.size = s->gather.count;
    boot.node = s->parent->node + 1;
    HOCCL_Result r = hoccl_device_enter(&s->parent->gpu->device, &pushed);
    if (r) {
        hoccl_gather_refuse(&s->gather);
        return r;
    }
    r = hoccl_comm_open(&boot, comm);
    hoccl_device_leave(pushed);
    return r;
}

HOCCL_Result hoccl_comm_split(struct hoccl_comm *parent, int color, int key, struct hoccl_comm **comm)
{
    struct split s;
    struct choice mine = {color, key};
    *comm = NULL;
    HOCCL_Result r = begin(parent, &s);
    if (!r && (r = hoccl_comm_error(parent)))
        hoccl_gather_refuse(&s.gather);
    if (!r)
        r = hoccl_gather(&s.gather, &mine, sizeof mine, s.choices);
    if (!r && color != HOCCL_SPLIT_NOCOLOR)
        r = open_members(&s, comm);
    end(&s);
    return r;
}

void hoccl_comm_split_refuse(struct hoccl_comm *parent)
{
    char text[HOCCL_ERROR_TEXT];
    struct split s;
    memcpy(text, hoccl_error_text(), sizeof text);
    HOCCL_Result r = begin(parent, &s);
    hoccl_fail_again(HOCCL_ERR_ARGUMENT, text);
    if (!r)
        hoccl_gather_refuse(&s.gather);
    end(&s);
}
