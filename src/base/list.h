/* SPDX-License-Identifier: Apache-2.0 */
/* A doubly linked list whose links stand in the objects. An empty list's head points to itself. */
#ifndef HOCCL_BASE_LIST_H
#define HOCCL_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct hoccl_list {
    struct hoccl_list *next, *prev;
};

/* The object that holds `link` as its member. */
#define hoccl_entry(link, type, member) ((type *)((char *)(link) - offsetof(type, member)))

static inline void hoccl_list_init(struct hoccl_list *head)
{
    head->next = head->prev = head;
}

static inline bool hoccl_list_empty(const struct hoccl_list *head)
{
    return head->next == head;
}

static inline void hoccl_list_append(struct hoccl_list *head, struct hoccl_list *link)
{
    link->next = head;
    link->prev = head->prev;
    head->prev->next = link;
    head->prev = link;
}

static inline void hoccl_list_remove(struct hoccl_list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->next = link->prev = link;
}

/* The first object, taken off; NULL if the list is empty. */
static inline struct hoccl_list *hoccl_list_take(struct hoccl_list *head)
{
    struct hoccl_list *first = head->next;
    if (first == head)
        return NULL;
    hoccl_list_remove(first);
    return first;
}

/* Move everything from `from` to the end of `to`. */
static inline void hoccl_list_move(struct hoccl_list *to, struct hoccl_list *from)
{
    if (hoccl_list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    hoccl_list_init(from);
}

#endif
