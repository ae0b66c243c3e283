/* SPDX-License-Identifier: Apache-2.0 */
/* See loan.h. */
#include "p2p/loan.h"

#include "base/descriptors.h"
#include "base/error.h"
#include "p2p/order.h"
#include "p2p/pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x4e414f4cu /* "LOAN" */
#define FDS (HOCCL_LOAN_POOLS * (1 + HOCCL_LOAN_DMABUFS))

/* What travels. The descriptors that `has` names come with it, in this order: memory out, in; dma-bufs of the first kind out, in;
 * of the second. */
struct message {
    uint32_t magic;
    uint32_t has;   /* bit i: the i-th is there; 0: no loan, */
    uint32_t flush;
    uint64_t bytes;
    char why[160];  /* for this reason */
};

/* ---- giving ------------------------------------------------------------------------------------------------------ */

/* The best first, as in place.c. */
static const unsigned long long kinds[HOCCL_LOAN_DMABUFS] = {CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, 0};

static void put(struct message *m, int *fds, unsigned *count, unsigned place, int fd)
{
    m->has |= 1u << place;
    fds[(*count)++] = fd;
}

static HOCCL_Result make(const struct hoccl_device *own, struct hoccl_lent *lent)
{
    int direct = 0;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.DeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
                                                                        own->ordinal), "asking for GPUDirect RDMA");
    if (!r && !direct)
        r = hoccl_fail(HOCCL_ERR_UNSUPPORTED, "it has no GPUDirect RDMA");
    for (unsigned i = 0; i < HOCCL_LOAN_POOLS && !r; i++)
        r = hoccl_device_memory_open_rdma(own, own->ordinal, HOCCL_POOL_BYTES, &lent->memory[i]);
    return r;
}

/* What of it has been exported must be closed also after an error. */
static HOCCL_Result export_all(const struct hoccl_lent *lent, struct message *m, int *fds, unsigned *count)
{
    for (unsigned i = 0; i < HOCCL_LOAN_POOLS; i++) {
        int fd;
        HOCCL_Result r = hoccl_driver_check(hoccl_driver.MemExportToShareableHandle(&fd, lent->memory[i].handle,
                                                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                                            "exporting memory for slots");
        if (r)
            return r;
        put(m, fds, count, i, fd);
    }
    for (unsigned i = HOCCL_LOAN_POOLS; i < FDS; i++) {
        const struct hoccl_device_memory *memory = &lent->memory[i % HOCCL_LOAN_POOLS];
        int fd;
        if (!hoccl_driver.MemGetHandleForAddressRange(&fd, memory->address, memory->bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                                      kinds[i / HOCCL_LOAN_POOLS - 1]))
            put(m, fds, count, i, fd);
    }
    m->bytes = lent->memory[0].bytes;
    return HOCCL_SUCCESS;
}

void hoccl_loan_refuse(int socket)
{
    struct message m = {.magic = MAGIC};
    snprintf(m.why, sizeof m.why, "%.*s", (int)sizeof m.why - 1, hoccl_error_text());
    hoccl_descriptors_send(socket, &m, sizeof m, NULL, 0);
}

HOCCL_Result hoccl_loan_give(const struct hoccl_device *own, int socket, struct hoccl_lent *lent)
{
    struct message m = {.magic = MAGIC, .flush = hoccl_order_demands_flush(own->ordinal, false)};
    int fds[FDS];
    unsigned count = 0;
    HOCCL_Result r = make(own, lent);
    if (!r)
        r = export_all(lent, &m, fds, &count);
    if (r)
        hoccl_loan_refuse(socket);
    else if (!hoccl_descriptors_send(socket, &m, sizeof m, fds, count))
        r = hoccl_fail(HOCCL_ERR_SYSTEM, "sending descriptors of memory for slots: %s", strerror(errno));
    hoccl_descriptors_close(fds, count);
    return r == HOCCL_ERR_SYSTEM ? r : HOCCL_SUCCESS;
}

void hoccl_lent_close(struct hoccl_lent *lent)
{
    for (unsigned i = 0; i < HOCCL_LOAN_POOLS; i++)
        hoccl_device_memory_close(&lent->memory[i]);
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

/* Its i-th descriptor. */
static int *place(struct hoccl_loan *loan, unsigned i)
{
    unsigned pool = i % HOCCL_LOAN_POOLS;
    return i < HOCCL_LOAN_POOLS ? &loan->memory[pool] : &loan->dmabuf[i / HOCCL_LOAN_POOLS - 1][pool];
}

int hoccl_loan_take(int socket, struct hoccl_loan *loan)
{
    const unsigned both = (1u << HOCCL_LOAN_POOLS) - 1;
    int fds[HOCCL_DESCRIPTORS_MOST];
    struct message m;
    unsigned count, next = 0;
    int n = hoccl_descriptors_take(socket, &m, sizeof m, fds, &count);
    if (n <= 0)
        return n;
    if (m.magic != MAGIC || m.has >> FDS || (unsigned)__builtin_popcount(m.has) != count || (count && (m.has & both) != both)) {
        hoccl_descriptors_close(fds, count);
        return -1;
    }
    *loan = (struct hoccl_loan){.given = count != 0, .flush = m.flush, .bytes = m.bytes};
    snprintf(loan->why, sizeof loan->why, "%.*s", (int)sizeof m.why - 1, m.why);
    for (unsigned i = 0; i < FDS; i++)
        *place(loan, i) = m.has >> i & 1 ? fds[next++] : -1;
    return 1;
}

void hoccl_loan_close(struct hoccl_loan *loan)
{
    for (unsigned i = 0; i < FDS && loan->given; i++)
        if (*place(loan, i) >= 0)
            close(*place(loan, i));
    loan->given = false;
}
