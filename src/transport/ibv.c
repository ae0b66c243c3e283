/* SPDX-License-Identifier: Apache-2.0 */
/* Finds libibverbs.so.1 and its functions. The library stays loaded until the process ends: it has threads' data and
 * providers of its own that do not survive being unloaded. ibv_fork_init is not called: since Linux 5.12 a fork leaves
 * registered pages alone, and before it the call would take registered memory away from the child (RDMAV_FORK_SAFE=1 asks
 * for that). */
#define _GNU_SOURCE
#include "transport/ibv.h"

#include "base/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

static const struct {
    const char *name;
    size_t offset;
    bool optional;
} symbols[] = {
    {"ibv_get_device_list", offsetof(struct hoccl_ibv, get_device_list), false},
    {"ibv_free_device_list", offsetof(struct hoccl_ibv, free_device_list), false},
    {"ibv_get_device_name", offsetof(struct hoccl_ibv, get_device_name), false},
    {"ibv_open_device", offsetof(struct hoccl_ibv, open_device), false},
    {"ibv_close_device", offsetof(struct hoccl_ibv, close_device), false},
    {"ibv_query_device", offsetof(struct hoccl_ibv, query_device), false},
    {"ibv_query_port", offsetof(struct hoccl_ibv, query_port), false},
    {"_ibv_query_gid_ex", offsetof(struct hoccl_ibv, query_gid_ex), false},
    {"ibv_query_pkey", offsetof(struct hoccl_ibv, query_pkey), false},
    {"ibv_get_async_event", offsetof(struct hoccl_ibv, get_async_event), false},
    {"ibv_ack_async_event", offsetof(struct hoccl_ibv, ack_async_event), false},
    {"ibv_event_type_str", offsetof(struct hoccl_ibv, event_type_str), false},
    {"ibv_alloc_pd", offsetof(struct hoccl_ibv, alloc_pd), false},
    {"ibv_dealloc_pd", offsetof(struct hoccl_ibv, dealloc_pd), false},
    {"ibv_reg_mr", offsetof(struct hoccl_ibv, reg_mr), false},
    {"ibv_reg_mr_iova2", offsetof(struct hoccl_ibv, reg_mr_iova2), true},
    {"ibv_reg_dmabuf_mr", offsetof(struct hoccl_ibv, reg_dmabuf_mr), true},
    {"ibv_dereg_mr", offsetof(struct hoccl_ibv, dereg_mr), false},
    {"ibv_create_comp_channel", offsetof(struct hoccl_ibv, create_comp_channel), false},
    {"ibv_destroy_comp_channel", offsetof(struct hoccl_ibv, destroy_comp_channel), false},
    {"ibv_create_cq", offsetof(struct hoccl_ibv, create_cq), false},
    {"ibv_destroy_cq", offsetof(struct hoccl_ibv, destroy_cq), false},
    {"ibv_get_cq_event", offsetof(struct hoccl_ibv, get_cq_event), false},
    {"ibv_ack_cq_events", offsetof(struct hoccl_ibv, ack_cq_events), false},
    {"ibv_create_srq", offsetof(struct hoccl_ibv, create_srq), false},
    {"ibv_destroy_srq", offsetof(struct hoccl_ibv, destroy_srq), false},
    {"ibv_create_qp", offsetof(struct hoccl_ibv, create_qp), false},
    {"ibv_modify_qp", offsetof(struct hoccl_ibv, modify_qp), false},
    {"ibv_destroy_qp", offsetof(struct hoccl_ibv, destroy_qp), false},
    {"ibv_wc_status_str", offsetof(struct hoccl_ibv, wc_status_str), false},
};

_Static_assert(sizeof(void *) == sizeof(void (*)(void)), "the table is filled as pointers");

static HOCCL_Result fill(struct hoccl_ibv *table)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return hoccl_fail(HOCCL_ERR_DEVICE,
                          "RDMA needs libibverbs: %s; install rdma-core (Debian: libibverbs1, "
                          "ibverbs-providers), or use HOCCL_NET=tcp",
                          dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found && !symbols[i].optional) {
            dlclose(library);
            return hoccl_fail(HOCCL_ERR_DEVICE,
                              "this libibverbs has no %s: HOCCL needs that of rdma-core 31 or newer, or "
                              "HOCCL_NET=tcp",
                              symbols[i].name);
        }
        *(void **)((char *)table + symbols[i].offset) = found;
    }
    return HOCCL_SUCCESS;
}

const struct hoccl_ibv *hoccl_ibv_load(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct hoccl_ibv table;
    static bool loaded;
    pthread_mutex_lock(&lock);
    loaded = loaded || !fill(&table);
    const struct hoccl_ibv *found = loaded ? &table : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}
