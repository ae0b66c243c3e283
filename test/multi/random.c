/* SPDX-License-Identifier: Apache-2.0 */
/* Random groups (test/conform/groups.h) with the ranks as processes.
 *
 * usage: mpirun -np N random [GROUPS [SEED]]    LONG_TESTS set: ten times as many groups */
#include "../conform/groups.h"
#include "kit.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct groups_job g = {.comm = {HOCCL_COMM_WORLD}, .groups = argc > 1 ? atoi(argv[1]) : 100,
                           .seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, .streams = 6, .most = 3 << 20};
    if (getenv("LONG_TESTS"))
        g.groups *= 10;
    kit_open(250, "random groups");
    g.rank = job.rank;
    g.size = job.size;
    g.device = job.device;
    check_hoccl(HOCCL_CommSplit(HOCCL_COMM_WORLD, 0, g.rank, &g.comm[1]), "HOCCL_CommSplit");
    groups_run(&g);
    check_hoccl(HOCCL_CommDestroy(g.comm[1]), "HOCCL_CommDestroy");
    kit_close();
    if (!job.rank)
        printf("random: %d groups on %d ranks, seed %llu: right\n", g.groups, g.size, (unsigned long long)g.seed);
    return 0;
}
