/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that ends within HOCCL_Init (B75): the launcher knows it, and it has said nothing yet. The launcher takes its end for
 * its coming, so the others do not wait for it at the fence.
 *
 * usage: mpirun --enable-recovery -np 1 PROGRAM : -np 1 halfway */
#include <pmix.h>
#include <signal.h>
#include <unistd.h>

int main(void)
{
    pmix_proc_t me;
    if (PMIx_Init(&me, NULL, 0) == PMIX_SUCCESS)
        sleep(1); /* the others are at the fence */
    return raise(SIGKILL);
}
