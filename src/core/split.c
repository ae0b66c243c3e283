/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting, over the sockets and connections that the parent's ranks hold to one another; no launcher, no listener, no id:
 *
 *   step 0, all ranks of the parent:  ── (color, key) ──▶   everyone knows its members and their order
 *   step 1, the members:              ── cards ─────────▶   the exchange that opens a communicator (core/comm.c)
 *
 * Packets of a sparse parent (abroad.h) go by its tree, so all of its ranks take part in step 1 too: everyone hears every card
 * and looks at those of its own part, and who joins none brings an empty one.
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
    int *ranks;             /* of the parent: all of them */
    int *members;           /* those of this rank's color, in their new order */
    int count, me;          /* how many; this rank's place */
    bool told;              /* the others have this rank's card */
};

/* The parent's end is the end of the call. What the others do is seen on their sockets. */
static HOCCL_Result check_parent(void *arg)
{
    struct hoccl_comm *parent = arg;
    if (hoccl_observe(&parent->abort))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "the communicator was aborted while it was split");
    return hoccl_comm_error(parent);
}

/* `all`: of the members. */
static HOCCL_Result exchange_by_tree(struct split *s, const char *mine, size_t bytes, char *all)
{
    char *cards = hoccl_alloc((size_t)s->parent->size * bytes, "a split");
    if (!cards) {
        hoccl_gather_refuse(&s->gather);
        return HOCCL_ERR_MEMORY;
    }
    HOCCL_Result r = hoccl_gather(&s->gather, mine, bytes, cards);
    for (int i = 0; i < s->count && !r; i++)
        memcpy(all + (size_t)i * bytes, cards + (size_t)s->members[i] * bytes, bytes);
    free(cards);
    return r;
}

static HOCCL_Result exchange(struct hoccl_boot *boot, const void *mine, size_t bytes, void *all, uint64_t timeout)
{
    struct split *s = boot->own;
    s->gather.timeout = timeout;
    s->told = true; /* or that it gives up: hoccl_gather sees to that */
    return s->gather.tree ? exchange_by_tree(s, mine, bytes, all) : hoccl_gather(&s->gather, mine, bytes, all);
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
    s->members = hoccl_alloc((size_t)parent->size * sizeof *s->members, "a split");
    s->gather = (struct hoccl_gather){.name = "splitting", .links = parent->links, .ranks = s->ranks,
                                      .count = parent->size, .me = parent->rank, .tree = parent->abroad.sparse, .call = ++parent->exchanges,
                                      .timeout = hoccl_settings.init_timeout, .check = check_parent, .arg = parent,
                                      .stir = hoccl_abroad_stir, .why = hoccl_abroad_why, .stirred = parent};
    if (!s->choices || !s->ranks || !s->members)
        return HOCCL_ERR_MEMORY;
    for (int p = 0; p < parent->size; p++)
        s->ranks[p] = p;
    return HOCCL_SUCCESS;
}

static void end(struct split *s)
{
    free(s->choices);
    free(s->ranks);
    free(s->members);
}

/* Insert the members one by one; those of equal key keep the order of their ranks. */
static void choose_members(struct split *s)
{
    const struct choice *c = s->choices;
    for (int p = 0; p < s->parent->size; p++) {
        if (c[p].color != c[s->parent->rank].color)
            continue;
        int i = s->count++;
        for (; i > 0 && c[s->members[i - 1]].key > c[p].key; i--)
            s->members[i] = s->members[i - 1];
        s->members[i] = p;
    }
    for (int i = 0; i < s->count; i++)
        if (s->members[i] == s->parent->rank)
            s->me = i;
    if (s->gather.tree)
        return;
    s->gather.ranks = s->members;
    s->gather.count = s->count;
    s->gather.me = s->me;
}

/* No part of the new communicators, but of the tree. */
static HOCCL_Result pass_cards_on(struct split *s)
{
    size_t bytes = hoccl_comm_card_bytes();
    char *none = hoccl_alloc(bytes, "a split");
    HOCCL_Result r = none ? exchange_by_tree(s, none, bytes, NULL) : HOCCL_ERR_MEMORY;
    if (!none)
        hoccl_gather_refuse(&s->gather);
    free(none);
    return r;
}

/* The new communicator's GPU is the parent's, whatever context is current. */
static HOCCL_Result open_members(struct split *s, struct hoccl_comm **comm)
{
    struct hoccl_boot boot = {.ops = &ops, .own = s};
    bool pushed;
    choose_members(s);
    boot.rank = boot.local_rank = s->me;
    boot.size = s->count;
    boot.node = s->parent->node + 1;
    HOCCL_Result r = hoccl_device_enter(&s->parent->gpu->device, &pushed);
    if (!r) {
        r = hoccl_comm_open(&boot, comm);
        hoccl_device_leave(pushed);
    }
    if (r && !s->told)
        hoccl_gather_refuse(&s->gather);
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
    s.gather.step = 1;
    if (!r && color != HOCCL_SPLIT_NOCOLOR)
        r = open_members(&s, comm);
    else if (!r && s.gather.tree)
        r = pass_cards_on(&s);
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
