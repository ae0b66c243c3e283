/* SPDX-License-Identifier: Apache-2.0 */
/* From counts and displacements to addresses, with every product and sum checked: nothing here can wrap (B16). */
#include "api/slices.h"

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

bool hoccl_slices_has(const struct hoccl_slices *s, int rank, int peer, int root)
{
    switch (s->with) {
    case HOCCL_WITH_ALL:
        return true;
    case HOCCL_WITH_ROOT:
        return peer == root;
    case HOCCL_WITH_AT_ROOT:
        return rank == root;
    }
    return false;
}

HOCCL_Result hoccl_slices_check(const struct hoccl_slices *s, int rank, int root, const char *side)
{
    if (!s->arrays || (s->with == HOCCL_WITH_AT_ROOT && rank != root))
        return HOCCL_SUCCESS;
    if (!s->counts)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the array of %s counts is NULL", side);
    if (!s->displs)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the array of %s displacements is NULL", side);
    return HOCCL_SUCCESS;
}

static HOCCL_Result too_large(const struct hoccl_slices *s, const char *side, int r, size_t count, const char *what)
{
    char at[48] = "";
    if (s->arrays)
        snprintf(at, sizeof at, " at displacement %zu", s->displs[r]);
    return hoccl_fail(HOCCL_ERR_ARGUMENT, "%s count %zu of rank %d%s: %s more than an address space", side, count, r, at, what);
}

HOCCL_Result hoccl_slices_get(const struct hoccl_slices *s, int r, size_t element_size, const char *side, size_t *total,
                              struct hoccl_slice *slice)
{
    size_t count = s->arrays ? s->counts[r] : s->count, start, end;
    *slice = (struct hoccl_slice){0};
    if (!count)
        return HOCCL_SUCCESS;
    if (!s->buf)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the %s buffer is NULL and the count of rank %d is %zu", side, r, count);
    if (s->arrays)
        start = s->displs[r];
    else if (__builtin_mul_overflow((size_t)r, s->step, &start))
        return too_large(s, side, r, count, "the buffer is");
    if (__builtin_mul_overflow(start, element_size, &start) || __builtin_mul_overflow(count, element_size, &slice->bytes) ||
        __builtin_add_overflow(start, slice->bytes, &end) || end > UINTPTR_MAX - (uintptr_t)s->buf)
        return too_large(s, side, r, count, "its end is");
    if (__builtin_add_overflow(*total, slice->bytes, total))
        return too_large(s, side, r, count, "with those before it, it is");
    slice->address = (const char *)s->buf + start;
    return HOCCL_SUCCESS;
}
