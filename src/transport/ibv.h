/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs as one table of functions, loaded at run time: HOCCL runs where it is not installed. What the library's header
 * defines as inline functions (ibv_post_send, ibv_poll_cq, ibv_post_recv, ibv_post_srq_recv, ibv_req_notify_cq) goes through
 * the opened device and needs no entry here. The members have the names of the functions without ibv_. */
#ifndef HOCCL_TRANSPORT_IBV_H
#define HOCCL_TRANSPORT_IBV_H

#include "hoccl.h"

#include <infiniband/verbs.h>

struct hoccl_ibv {
    struct ibv_device **(*get_device_list)(int *);
    __typeof__(ibv_free_device_list) *free_device_list;
    __typeof__(ibv_get_device_name) *get_device_name;
    __typeof__(ibv_open_device) *open_device;
    __typeof__(ibv_close_device) *close_device;
    __typeof__(ibv_query_device) *query_device;
    int (*query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
    __typeof__(_ibv_query_gid_ex) *query_gid_ex;
    __typeof__(ibv_query_pkey) *query_pkey;
    __typeof__(ibv_get_async_event) *get_async_event;
    __typeof__(ibv_ack_async_event) *ack_async_event;
    __typeof__(ibv_event_type_str) *event_type_str;
    __typeof__(ibv_alloc_pd) *alloc_pd;
    __typeof__(ibv_dealloc_pd) *dealloc_pd;
    struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int); /* NULL: an old library */
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);  /* NULL: an old library */
    __typeof__(ibv_dereg_mr) *dereg_mr;
    __typeof__(ibv_create_comp_channel) *create_comp_channel;
    __typeof__(ibv_destroy_comp_channel) *destroy_comp_channel;
    __typeof__(ibv_create_cq) *create_cq;
    __typeof__(ibv_destroy_cq) *destroy_cq;
    __typeof__(ibv_get_cq_event) *get_cq_event;
    __typeof__(ibv_ack_cq_events) *ack_cq_events;
    __typeof__(ibv_create_srq) *create_srq;
    __typeof__(ibv_destroy_srq) *destroy_srq;
    __typeof__(ibv_create_qp) *create_qp;
    __typeof__(ibv_modify_qp) *modify_qp;
    __typeof__(ibv_destroy_qp) *destroy_qp;
    __typeof__(ibv_wc_status_str) *wc_status_str;
};

/* The table, the library loaded at the first call; NULL with the error set (DEVICE) where it cannot be. */
const struct hoccl_ibv *hoccl_ibv_load(void);

#endif
