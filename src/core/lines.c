/* SPDX-License-Identifier: Apache-2.0 */
/* See lines.h. */
#include "core/lines.h"

#include <stddef.h>

/* At the end of its line. True if it may run. */
static bool line_up(struct hoccl_flow *f)
{
    struct hoccl_flow **last = &f->peer->last[f->is_send];
    struct hoccl_flow *first = *last ? (*last)->line.first : f;
    f->line.first = first;
    if (*last)
        (*last)->line.next = f;
    *last = f;
    if (first->line.begun < HOCCL_LINE_RUNS) {
        first->line.begun++;
        return true;
    }
    if (!first->line.later)
        first->line.later = f;
    return false;
}

void hoccl_lines_start(struct hoccl_list *running, struct hoccl_flow *flows, int n)
{
    bool all = n <= (int)HOCCL_LINE_RUNS;
    for (int sends = 0; sends < 2; sends++)
        for (int i = 0; i < n; i++)
            if (flows[i].is_send == (sends == 1) && (all || line_up(&flows[i])))
                hoccl_list_append(running, &flows[i].link);
    for (int i = 0; i < n && !all; i++)
        flows[i].peer->last[flows[i].is_send] = NULL;
}

void hoccl_lines_advance(struct hoccl_list *running, struct hoccl_flow *flow)
{
    struct hoccl_flow *first = flow->line.first, *next = first ? first->line.later : NULL;
    if (!next)
        return;
    first->line.later = next->line.next;
    hoccl_list_append(running, &next->link);
}
