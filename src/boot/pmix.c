/* SPDX-License-Identifier: Apache-2.0 */
/* Start-up over PMIx (paper §5). The one form that works under mpirun and under srun, within and across nodes: every
 * rank puts and commits something, then one wildcard fence with PMIX_COLLECT_DATA; a fence without it returns early
 * under Slurm 22.05. A rank that ends before it commits releases the fence all the same, and a get of something never
 * committed hangs for ever: so gets are PMIX_IMMEDIATE. The fence is asynchronous here, so that a deadline holds although
 * PMIX_TIMEOUT bounds the local part only.
 *
 * The client is initialised once and finalised at the process's end: PMIx cannot be started again. */
#include "boot/boot.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY "hoccl.blob"
#define PATIENCE (30 * HOCCL_S)

static pmix_proc_t self;
static pid_t initialised_in; /* a child of this process has no thread of PMIx, and PMIx_Finalize would wait for one for ever */
static uint32_t fence_done; /* 0 waiting, 1 done (written by PMIx's thread) */
static pmix_status_t fence_status;

static HOCCL_Result failed(const char *what, pmix_status_t s)
{
    return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: %s (PMIx client %s)", what, PMIx_Error_string(s), PMIx_Get_version());
}

static HOCCL_Result get_u32(const char *key, pmix_rank_t rank, uint32_t *out)
{
    pmix_proc_t p = self;
    pmix_value_t *v = NULL;
    uint32_t x = 0;
    p.rank = rank;
    pmix_status_t s = PMIx_Get(&p, key, NULL, 0, &v);
    if (s != PMIX_SUCCESS)
        return failed(key, s);
    if (v->type == PMIX_UINT32)
        x = v->data.uint32;
    else if (v->type == PMIX_UINT16)
        x = v->data.uint16;
    else
        s = PMIX_ERR_BAD_PARAM;
    PMIX_VALUE_RELEASE(v);
    if (s != PMIX_SUCCESS)
        return failed(key, s);
    *out = x;
    return HOCCL_SUCCESS;
}

static void on_fence(pmix_status_t status, void *arg)
{
    (void)arg;
    fence_status = status;
    hoccl_publish(&fence_done, 1);
}

static HOCCL_Result fence(const struct hoccl_boot *boot, uint64_t timeout)
{
    pmix_proc_t all = self;
    pmix_info_t info;
    bool yes = true;
    uint64_t begun = hoccl_now(), said = begun;
    all.rank = PMIX_RANK_WILDCARD;
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    hoccl_publish(&fence_done, 0);
    pmix_status_t s = PMIx_Fence_nb(&all, 1, &info, 1, on_fence, NULL);
    if (s == PMIX_OPERATION_SUCCEEDED)
        return HOCCL_SUCCESS;
    if (s != PMIX_SUCCESS)
        return failed("PMIx_Fence", s);
    while (!hoccl_observe(&fence_done)) {
        uint64_t now = hoccl_now();
        if (now - begun > timeout)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP,
                              "start-up: not all of the %d ranks called HOCCL_Init within %llu s (HOCCL_INIT_TIMEOUT)",
                              boot->size, (unsigned long long)(timeout / HOCCL_S));
        if (now - said > PATIENCE) {
            hoccl_log(HOCCL_LOG_WARN, "start-up: still waiting for some of %d ranks to call HOCCL_Init (%llu s)", boot->size,
                      (unsigned long long)((now - begun) / HOCCL_S));
            said = now;
        }
        hoccl_sleep(50 * HOCCL_US);
    }
    if (fence_status == PMIX_SUCCESS || fence_status == PMIX_ERR_PARTIAL_SUCCESS) /* part: a rank has ended; get_all says which */
        return HOCCL_SUCCESS;
    return failed("PMIx_Fence", fence_status);
}

static HOCCL_Result put(const void *mine, size_t bytes)
{
    pmix_value_t v = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = (char *)mine, .size = bytes}};
    pmix_status_t s = PMIx_Put(PMIX_GLOBAL, KEY, &v);
    if (s == PMIX_SUCCESS)
        s = PMIx_Commit();
    return s == PMIX_SUCCESS ? HOCCL_SUCCESS : failed("PMIx_Put", s);
}

/* *there is false if it has come to no server: after the fence none waits for what never comes, which would be for ever. */
static HOCCL_Result get(int rank, size_t bytes, void *out, bool *there)
{
    pmix_proc_t p = self;
    pmix_value_t *v = NULL;
    pmix_info_t info;
    bool yes = true;
    HOCCL_Result r = HOCCL_SUCCESS;
    p.rank = (pmix_rank_t)rank;
    PMIX_INFO_LOAD(&info, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
    pmix_status_t s = PMIx_Get(&p, KEY, &info, 1, &v);
    *there = s != PMIX_ERR_NOT_FOUND;
    if (!*there)
        return HOCCL_SUCCESS;
    if (s != PMIX_SUCCESS)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "what rank %d said at start-up: %s (PMIx client %s)", rank,
                          PMIx_Error_string(s), PMIx_Get_version());
    if (v->type != PMIX_BYTE_OBJECT || v->data.bo.size != bytes)
        r = hoccl_fail(HOCCL_ERR_BOOTSTRAP, "rank %d runs another version of HOCCL", rank);
    else
        memcpy(out, v->data.bo.bytes, bytes);
    PMIX_VALUE_RELEASE(v);
    return r;
}

/* Where a rank has ended, the server of its node may give nothing of its other ranks either. */
static HOCCL_Result get_all(const struct hoccl_boot *boot, size_t bytes, char *all)
{
    char text[128];
    struct hoccl_names missing;
    bool there, complete = true;
    HOCCL_Result r = HOCCL_SUCCESS;
    hoccl_names_begin(&missing, text, sizeof text);
    for (int i = 0; !r && i < boot->size; i++) {
        r = get(i, bytes, all + (size_t)i * bytes, &there);
        if (!r && !there)
            hoccl_names_add(&missing, i);
        complete &= there;
    }
    if (r || complete)
        return r;
    return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: nothing has come from rank %s: a rank has ended within HOCCL_Init, or left the "
                      "job; look for its own message", hoccl_names_end(&missing));
}

static HOCCL_Result exchange(struct hoccl_boot *boot, const void *mine, size_t bytes, void *all, uint64_t timeout)
{
    HOCCL_Result r = put(mine, bytes);
    if (!r)
        r = fence(boot, timeout);
    return r ? r : get_all(boot, bytes, all);
}

static void finalize_at_exit(void)
{
    if (getpid() == initialised_in)
        PMIx_Finalize(NULL, 0);
}

static void close_nothing(struct hoccl_boot *boot)
{
    (void)boot;
}

static const struct hoccl_boot_ops ops = {.name = "PMIx", .exchange = exchange, .close = close_nothing};

HOCCL_Result hoccl_boot_pmix_open(struct hoccl_boot *boot)
{
    uint32_t size = 0, local = 0;
    pmix_status_t s = PMIx_Init(&self, NULL, 0);
    if (s != PMIX_SUCCESS)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP,
                          "PMIx_Init: %s (client %s; the launcher's PMIx may be too old or too new for it, or a PMIX_MCA_* "
                          "setting may name a component that is not here)",
                          PMIx_Error_string(s), PMIx_Get_version());
    initialised_in = getpid();
    atexit(finalize_at_exit);
    HOCCL_Result r = get_u32(PMIX_JOB_SIZE, PMIX_RANK_WILDCARD, &size);
    if (!r)
        r = get_u32(PMIX_LOCAL_RANK, self.rank, &local);
    if (r)
        return r;
    *boot = (struct hoccl_boot){.ops = &ops, .rank = (int)self.rank, .size = (int)size, .local_rank = (int)local};
    return HOCCL_SUCCESS;
}
