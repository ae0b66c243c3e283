/* SPDX-License-Identifier: Apache-2.0 */
/* Registers memory and, where that fails, says what the number that the kernel gave means and what can be done. */
#define _GNU_SOURCE
#include "transport/verbs_region.h"

#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *limit_text(char *text, size_t bytes)
{
    struct rlimit l = {RLIM_INFINITY, RLIM_INFINITY};
    getrlimit(RLIMIT_MEMLOCK, &l);
    if (l.rlim_cur == RLIM_INFINITY)
        snprintf(text, bytes, "unlimited");
    else
        snprintf(text, bytes, "%llu KiB", (unsigned long long)l.rlim_cur / 1024);
    return text;
}

static bool peer_memory_module(void)
{
    return !access("/sys/module/nvidia_peermem", F_OK) || !access("/sys/module/nv_peer_mem", F_OK);
}

static HOCCL_Result failed(int e, const void *address, size_t bytes, const char *what)
{
    char limit[32];
    if (e == ENOMEM || e == EAGAIN || e == EPERM)
        return hoccl_fail(HOCCL_ERR_MEMORY,
                          "the RDMA card cannot register %zu bytes of %s: %s. The limit of locked memory is %s in "
                          "this process (ulimit -l; the launcher's may differ from the shell's): raise it to unlimited in "
                          "/etc/security/limits.conf, and for Slurm or a container where its daemon starts; HOCCL_NET=tcp needs none",
                          bytes, what, strerror(e), limit_text(limit, sizeof limit));
    if (e == EFAULT)
        return hoccl_fail(HOCCL_ERR_DEVICE,
                          "the RDMA card cannot register %zu bytes of %s at %p: the address is no host memory of this "
                          "process. For GPU memory this needs %s, or a dma-buf of it",
                          bytes, what, address,
                          peer_memory_module()
                              ? "a newer nvidia-peermem module than the one that is loaded"
                              : "the module nvidia-peermem, which is not loaded (modprobe nvidia-peermem)");
    return hoccl_fail(HOCCL_ERR_DEVICE, "the RDMA card cannot register %zu bytes of %s at %p: %s", bytes, what, address,
                      strerror(e));
}

static HOCCL_Result failed_dmabuf(int e, size_t bytes)
{
    if (e == EOPNOTSUPP || e == EPROTONOSUPPORT || e == ENOSYS)
        return hoccl_fail(HOCCL_ERR_DEVICE,
                          "the RDMA card's driver cannot register GPU memory by dma-buf (%s): it takes Linux 5.12, "
                          "libibverbs 34 and a card whose driver can; the module nvidia-peermem does without%s",
                          strerror(e), peer_memory_module() ? "" : " (not loaded)");
    return hoccl_fail(e == ENOMEM ? HOCCL_ERR_MEMORY : HOCCL_ERR_DEVICE,
                      "the RDMA card cannot register %zu bytes of GPU memory by "
                      "dma-buf: %s%s",
                      bytes, strerror(e),
                      e == ENOMEM ? "; the GPU's window on the bus (BAR1) may be full: nvidia-smi -q -d MEMORY" : "");
}

static struct ibv_mr *by_address(const struct hoccl_ibv *ibv, struct ibv_pd *pd, void *address, size_t bytes, int access)
{
    struct ibv_mr *made = NULL;
    int plain = (int)((unsigned)access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE);
    if (ibv->reg_mr_iova2)
        made = ibv->reg_mr_iova2(pd, address, bytes, (uintptr_t)address, (unsigned)access);
    if (!ibv->reg_mr_iova2 || (!made && errno == EINVAL && access != plain))
        made = ibv->reg_mr(pd, address, bytes, plain);
    return made;
}

HOCCL_Result hoccl_memory_register(const struct hoccl_ibv *ibv, struct ibv_pd *pd, void *address, size_t bytes, int access,
                                   const char *what, struct ibv_mr **mr)
{
    errno = 0;
    struct ibv_mr *made = by_address(ibv, pd, address, bytes, access);
    if (!made)
        return failed(errno, address, bytes, what);
    *mr = made;
    return HOCCL_SUCCESS;
}

/* An optional flag is dropped by the library where the kernel does not know it; a card that refuses it is asked without. */
HOCCL_Result hoccl_region_register(const struct hoccl_ibv *ibv, struct ibv_pd *pd, const struct hoccl_region_source *source,
                                   struct ibv_mr **mr)
{
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ; /* to read: flushes */
    struct ibv_mr *made;
    if (source->dmabuf < 0)
        return hoccl_memory_register(ibv, pd, source->address, source->bytes, access | IBV_ACCESS_RELAXED_ORDERING,
                                     source->gpu ? "GPU memory" : "memory", mr);
    if (!ibv->reg_dmabuf_mr)
        return failed_dmabuf(ENOSYS, source->bytes);
    uint64_t iova = (uintptr_t)source->address;
    made =
        ibv->reg_dmabuf_mr(pd, source->offset, source->bytes, iova, source->dmabuf, access | IBV_ACCESS_RELAXED_ORDERING);
    if (!made && errno == EINVAL)
        made = ibv->reg_dmabuf_mr(pd, source->offset, source->bytes, iova, source->dmabuf, access);
    if (!made)
        return failed_dmabuf(errno, source->bytes);
    *mr = made;
    return HOCCL_SUCCESS;
}
