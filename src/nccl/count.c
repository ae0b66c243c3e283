/* SPDX-License-Identifier: Apache-2.0 */
/* With HOCCL_DEBUG=info the process says at its end what HOCCL has done for it; test/gpu/nccl_tests.sh reads that line. */
#include "nccl/count.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_ulong posted[SHIM_KINDS], refused;

void shim_count(enum shim_kind kind, unsigned long n)
{
    posted[kind] += n;
}

void shim_count_refused(void)
{
    refused++;
}

__attribute__((destructor)) static void report(void)
{
    static const char *const names[] = {"send", "recv", "allgather", "alltoall", "broadcast", "gather", "scatter"};
    const char *debug = getenv("HOCCL_DEBUG");
    char line[512];
    unsigned long all = 0;
    size_t n;
    if (!debug || (strcmp(debug, "info") && strcmp(debug, "trace")))
        return;
    for (int i = 0; i < SHIM_KINDS; i++)
        all += posted[i];
    n = (size_t)snprintf(line, sizeof line, "HOCCL pid %d: info: NCCL operations done by HOCCL: %lu", (int)getpid(), all);
    for (int i = 0; i < SHIM_KINDS; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, ", %s %lu", names[i], (unsigned long)posted[i]);
    n += (size_t)snprintf(line + n, sizeof line - n, "; refused %lu\n", (unsigned long)refused);
    if (write(STDERR_FILENO, line, n) < 0)
        return;
}
