/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one machine that no descriptor can reach are not of one node (B59 d): the odd ones leave the network namespace,
 * and with it the abstract Unix sockets and every network interface, after PMIx has connected. Both sides must find out and
 * say so.
 *
 * usage: mpirun -np 2 elsewhere    exits with 77 where the namespace cannot be left */
#define _GNU_SOURCE
#include <hoccl.h>
#include <pmix.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    pmix_proc_t me;
    alarm(60);
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS) {
        fprintf(stderr, "elsewhere: no PMIx\n");
        return 1;
    }
    if (me.rank % 2 && unshare(CLONE_NEWNET)) {
        fprintf(stderr, "elsewhere: unshare: %m\n");
        return 77;
    }
    HOCCL_Result r = HOCCL_Init();
    printf("elsewhere: rank %u: %s: %s\n", me.rank, HOCCL_GetErrorString(r), HOCCL_GetLastError());
    PMIx_Finalize(NULL, 0); /* ours; HOCCL's own comes at the end */
    return r == HOCCL_ERR_BOOTSTRAP && strstr(HOCCL_GetLastError(), "no network interface") ? 0 : 1;
}
