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

/* What launchers tell who speak no PMIx. Each process would be a world of one, and none would notice. */
static HOCCL_Result check_alone(void)
{
    const char *tasks = getenv("SLURM_NTASKS"), *processes = getenv("PMI_SIZE");
    if (tasks && atoi(tasks) > 1 && getenv("SLURM_PROCID"))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP,
                          "srun started %s tasks without PMIx, so they cannot find one another: use srun --mpi=pmix "
                          "(srun --mpi=list shows what this Slurm has)",
                          tasks);
    if (processes && atoi(processes) > 1 && getenv("PMI_RANK"))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP,
                          "the launcher (mpiexec of MPICH or Intel MPI?) started %s processes with PMI and not PMIx, so they cannot find "
                          "one another: use mpirun of Open MPI or srun --mpi=pmix, or HOCCL_GetUniqueId and HOCCL_CommInitRank instead of "
                          "HOCCL_Init", processes);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_boot_open(struct hoccl_boot *boot)
{
    if (getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK"))
        return hoccl_boot_pmix_open(boot);
    HOCCL_Result r = check_alone();
    if (!r)
        hoccl_boot_alone_open(boot);
    return r;
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
