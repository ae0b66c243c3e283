/* SPDX-License-Identifier: Apache-2.0 */
/* Start-up: who am I, and one exchange of a small blob among all ranks. A launcher is a table of functions. */
#ifndef HOCCL_BOOT_BOOT_H
#define HOCCL_BOOT_BOOT_H

#include "hoccl.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Blobs are kept well below this: PMIx servers slow down or crash on large ones (B75 kind; measured). */
#define HOCCL_BLOB_MAX 4096

struct hoccl_boot;

struct hoccl_boot_ops {
    const char *name;
    /* Collective, once: every rank gives `bytes`, `all` receives size × bytes in rank order. Waits at most
     * `timeout` ns, saying every 30 s what it waits for; then BOOTSTRAP on every rank that waits. */
    HOCCL_Result (*exchange)(struct hoccl_boot *boot, const void *mine, size_t bytes, void *all, uint64_t timeout);
    void (*close)(struct hoccl_boot *boot);
    /* May start-up go on? Asked while it waits; an error ends the waiting. NULL: nothing can end it but time. */
    HOCCL_Result (*check)(struct hoccl_boot *boot);
};

struct hoccl_boot {
    const struct hoccl_boot_ops *ops;
    int rank, size, local_rank;
    int node; /* for tests: 0: as HOCCL_TEST_NODE says for this rank; else 1 + the node that the parent is on */
    void *own; /* the implementation's */
};

/* Choose by the environment: PMIx if a PMIx launcher started us, else a world of one. Several processes of a launcher without
 * PMIx (SLURM_NTASKS, PMI_SIZE) are BOOTSTRAP with the hint. */
HOCCL_Result hoccl_boot_open(struct hoccl_boot *boot);

/* A list of ranks for texts: "1, 3, 4 and 12 more". */
struct hoccl_names {
    char *text;
    size_t bytes, used;
    int left_out;
};

void hoccl_names_begin(struct hoccl_names *names, char *text, size_t bytes);
void hoccl_names_add(struct hoccl_names *names, int rank);
const char *hoccl_names_end(struct hoccl_names *names); /* the text */

HOCCL_Result hoccl_boot_pmix_open(struct hoccl_boot *boot);
void hoccl_boot_alone_open(struct hoccl_boot *boot);

#endif
