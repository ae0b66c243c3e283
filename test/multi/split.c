/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a launcher: the world is split, the halves are split again, and a second communicator of all ranks is made from
 * a unique id that travels in a file of $TMPDIR. All of them are used, also after their parents have been destroyed. */
#include "../conform/ranks.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void split(struct rank *r)
{
    HOCCL_Comm half = HOCCL_COMM_NULL, alone = HOCCL_COMM_NULL;
    int rank = -1, size = -1, device = -1, mine = -1;

    if (!RANK_OK(r, HOCCL_CommSplit(HOCCL_COMM_WORLD, r->rank % 2, -r->rank, &half)))
        return;
    RANK_OK(r, HOCCL_CommRank(half, &rank));
    RANK_OK(r, HOCCL_CommSize(half, &size));
    RANK_OK(r, HOCCL_CommDevice(half, &device));
    RANK_OK(r, HOCCL_CommDevice(HOCCL_COMM_WORLD, &mine));
    RANK_TRUE(r, size == (r->size + 1 - r->rank % 2) / 2 && rank == size - 1 - r->rank / 2 && device == mine);
    rank_exchange(r, half, 300000, 1);
    RANK_OK(r, HOCCL_CommSplit(half, r->rank == 0 ? HOCCL_SPLIT_NOCOLOR : r->rank, 0, &alone));
    RANK_TRUE(r, (alone == HOCCL_COMM_NULL) == (r->rank == 0));
    RANK_OK(r, HOCCL_CommDestroy(half));
    if (alone) {
        rank_exchange(r, alone, 1000, 2);
        RANK_OK(r, HOCCL_CommDestroy(alone));
    }
}

/* The file appears whole: it is renamed to its name. */
static bool share_id(struct rank *r, HOCCL_UniqueId *id)
{
    char path[4096], draft[4096];
    FILE *f = NULL;

    snprintf(path, sizeof path, "%s/id", getenv("TMPDIR"));
    snprintf(draft, sizeof draft, "%s/draft", getenv("TMPDIR"));
    if (r->rank == 0)
        return RANK_OK(r, HOCCL_GetUniqueId(id)) && RANK_TRUE(r, (f = fopen(draft, "w"))) &&
               RANK_TRUE(r, fwrite(id, sizeof *id, 1, f) == 1) && RANK_TRUE(r, !fclose(f)) && RANK_TRUE(r, !rename(draft, path));
    for (int i = 0; i < 10000 && !(f = fopen(path, "r")); i++)
        usleep(1000);
    if (!RANK_TRUE(r, f))
        return false;
    RANK_TRUE(r, fread(id, sizeof *id, 1, f) == 1);
    fclose(f);
    return !r->failed;
}

static void init_by_id(struct rank *r)
{
    HOCCL_UniqueId id;
    HOCCL_Comm comm = HOCCL_COMM_NULL;

    if (!share_id(r, &id) || !RANK_OK(r, HOCCL_CommInitRank(&comm, r->size, id, r->size - 1 - r->rank)))
        return;
    rank_exchange(r, comm, 200000, 3);
    rank_exchange(r, HOCCL_COMM_WORLD, 200000, 4);
    RANK_OK(r, HOCCL_CommDestroy(comm));
}

int main(void)
{
    struct rank r = {.comm = HOCCL_COMM_NULL};

    alarm(100);
    if (RANK_OK(&r, HOCCL_Init()) && RANK_OK(&r, HOCCL_CommRank(HOCCL_COMM_WORLD, &r.rank)) &&
        RANK_OK(&r, HOCCL_CommSize(HOCCL_COMM_WORLD, &r.size))) {
        split(&r);
        init_by_id(&r);
        rank_exchange(&r, HOCCL_COMM_WORLD, 1000, 5);
        if (!r.failed)
            RANK_OK(&r, HOCCL_Finalize());
    }
    if (r.failed)
        fprintf(stderr, "%s\n", r.text);
    return r.failed;
}
