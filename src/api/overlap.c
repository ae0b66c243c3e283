/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces, not whole buffers, are compared: the rows of both directions may well be interleaved in one allocation. In
 * order of their first byte, a piece collides with one before it exactly if it starts below the highest end so far. */
#include "api/overlap.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>

struct piece {
    uintptr_t low, high;
    bool written;
    int peer; /* −1: what stays where it is */
};

static int compare(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    return (a->low > b->low) - (a->low < b->low);
}

static size_t collect(const struct hoccl_request *q, size_t n, const struct hoccl_slice *own, struct piece *pieces)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        uintptr_t low = (uintptr_t)q[i].address;
        if (q[i].header.bytes && !q[i].after) /* what is passed on is read when it has been written */
            pieces[count++] = (struct piece){low, low + q[i].header.bytes, !q[i].is_send, q[i].peer};
    }
    if (own->bytes)
        pieces[count++] = (struct piece){(uintptr_t)own->address, (uintptr_t)own->address + own->bytes, false, -1};
    return count;
}

static const char *name(const struct piece *p, char *text, size_t room)
{
    size_t bytes = (size_t)(p->high - p->low);
    if (p->peer < 0)
        snprintf(text, room, "what this rank keeps at %p (%zu bytes)", (void *)p->low, bytes);
    else
        snprintf(text, room, "what is %s rank %d at %p (%zu bytes)", p->written ? "received from" : "sent to", p->peer,
                 (void *)p->low, bytes);
    return text;
}

static HOCCL_Result collision(const struct piece *a, const struct piece *b)
{
    const struct piece *w = a->written ? a : b, *other = a->written ? b : a;
    char one[112], two[112];
    return hoccl_fail(HOCCL_ERR_ARGUMENT, "%s overlaps %s: only the in-place use that hoccl.h describes for the call is allowed",
                      name(w, one, sizeof one), name(other, two, sizeof two));
}

/* The read and the written piece that reach farthest so far. */
static HOCCL_Result sweep(const struct piece *p, size_t n)
{
    const struct piece *read = NULL, *written = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct piece **farthest = p[i].written ? &written : &read;
        if (written && p[i].low < written->high)
            return collision(written, &p[i]);
        if (p[i].written && read && p[i].low < read->high)
            return collision(&p[i], read);
        if (!*farthest || (*farthest)->high < p[i].high)
            *farthest = &p[i];
    }
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_overlap_check(const struct hoccl_request *requests, size_t n, const struct hoccl_slice *own)
{
    struct piece few[33], *pieces = few;
    if (n + 1 > sizeof few / sizeof *few)
        pieces = hoccl_alloc((n + 1) * sizeof *pieces, "the pieces of a collective");
    if (!pieces)
        return HOCCL_ERR_MEMORY;
    size_t count = collect(requests, n, own, pieces);
    qsort(pieces, count, sizeof *pieces, compare);
    HOCCL_Result r = sweep(pieces, count);
    if (pieces != few)
        free(pieces);
    return r;
}
