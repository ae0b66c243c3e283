/* SPDX-License-Identifier: Apache-2.0 */
/* What HOCCL's threads do to the machine.
 *
 *   b79  every thread of the process may run where the launcher has allowed it, and nowhere else
 *   b80  many ranks on few cores: AllGather of 1 MiB a rank, then nothing: less than 5 % of a core
 *
 * usage: mpirun -np N crowd b79|b80 */
#define _GNU_SOURCE
#include "kit.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static bool longer;

static void b79(void)
{
    cpu_set_t mine, its;
    DIR *d = opendir("/proc/self/task");
    int threads = 0;
    kit_exchange("b79");
    if (!d || sched_getaffinity(0, sizeof mine, &mine))
        fail("b79: what this thread may use is not known");
    for (struct dirent *e; (e = readdir(d));) {
        int id = atoi(e->d_name);
        if (!id || sched_getaffinity(id, sizeof its, &its))
            continue;
        threads++;
        if (!CPU_EQUAL(&mine, &its))
            fail("b79: thread %d may use %d cores and the process's first thread %d others", id, CPU_COUNT(&its), CPU_COUNT(&mine));
    }
    closedir(d);
    if (threads < 3)
        fail("b79: only %d threads", threads);
    printf("crowd: rank %d: %d threads on the %d cores that the launcher has given\n", job.rank, threads, CPU_COUNT(&mine));
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void b80(void)
{
    enum { N = 1 << 20 };
    int rounds = longer ? 100 : 4;
    CUstream s = kit_stream();
    CUdeviceptr out = kit_memory(N), in = kit_guarded((size_t)N * (size_t)job.size);
    double begun = now();
    for (int round = 0; round < rounds; round++) {
        if (round % 10 == 0)
            pattern_fill(out, N, (struct message){job.rank, -1, (unsigned)round});
        check_hoccl(HOCCL_AllGather(kit_pointer(out), kit_pointer(in), N, HOCCL_BYTE, HOCCL_COMM_WORLD, s), "HOCCL_AllGather");
        kit_sync(s, "b80");
        for (int p = 0; p < job.size && round % 10 == 0; p++)
            kit_verify(in + (size_t)p * N, N, (struct message){p, -1, (unsigned)round}, "b80");
    }
    kit_guards(in, (size_t)N * (size_t)job.size, "b80");
    double took = now() - begun;
    if (took > 60)
        fail("b80: %d rounds took %.1f s", rounds, took);
    kit_exchange("b80");
    usleep(500000);
    double before = cpu_seconds(), from = now();
    usleep(longer ? 5000000 : 2000000);
    double share = (cpu_seconds() - before) / (now() - from);
    if (share > 0.05)
        fail("b80: an idle rank uses %.1f %% of a core", 100 * share);
    if (!job.rank)
        printf("crowd: %d rounds of AllGather on %d ranks in %.1f s; idle: %.2f %% of a core\n", rounds, job.size, took, 100 * share);
}

int main(int argc, char **argv)
{
    bool cores = argc > 1 && !strcmp(argv[1], "b79");
    longer = getenv("LONG_TESTS") != NULL;
    kit_open(longer ? 250 : 110, "crowd");
    if (cores)
        b79();
    else
        b80();
    kit_exchange("at last");
    kit_close();
    return 0;
}
