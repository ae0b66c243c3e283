/* SPDX-License-Identifier: Apache-2.0 */
/* Which launcher, and the world of one. PMIx_Init is called only under a PMIx launcher: called without one it makes a
 * later MPI_Init of the same program abort. */
#include "boot/boot.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static HOCCL_Result alone_exchange(struct hoccl_boot *boot, const void *mine, size_t bytes, void *all, uint64_t timeout)
{
    (void)boot, (void)timeout;
    memcpy(all, mine, bytes);
    return HOCCL_SUCCESS;
}

static void alone_close(struct hoccl_boot *boot)
{
    (void)boot;
}

static const struct hoccl_boot_ops alone = {.name = "alone", .exchange = alone_exchange, .close = alone_close};

void hoccl_boot_alone_open(struct hoccl_boot *boot)
{
    *boot = (struct hoccl_boot){.ops = &alone, .rank = 0, .size = 1, .local_rank = 0};
}

HOCCL_Result hoccl_boot_open(struct hoccl_boot *boot)
{
    const char *tasks = getenv("SLURM_NTASKS");
    if (getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK"))
        return hoccl_boot_pmix_open(boot);
    if (tasks && atoi(tasks) > 1 && getenv("SLURM_PROCID"))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP,
                          "srun started %s tasks without PMIx, so they cannot find one another: use srun --mpi=pmix "
                          "(srun --mpi=list shows what this Slurm has)",
                          tasks);
    hoccl_boot_alone_open(boot);
    return HOCCL_SUCCESS;
}

void hoccl_names_begin(struct hoccl_names *names, char *text, size_t bytes)
{
    *names = (struct hoccl_names){.text = text, .bytes = bytes};
    text[0] = 0;
}

void hoccl_names_add(struct hoccl_names *names, int rank)
{
    if (names->left_out || names->bytes - names->used < 40)
        names->left_out++;
    else
        names->used += (size_t)snprintf(names->text + names->used, names->bytes - names->used, "%s%d", names->used ? ", " : "",
                                        rank);
}

const char *hoccl_names_end(struct hoccl_names *names)
{
    if (names->left_out)
        snprintf(names->text + names->used, names->bytes - names->used, " and %d more", names->left_out);
    return names->text;
}
