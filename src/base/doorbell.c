/* SPDX-License-Identifier: Apache-2.0 */
/* A doorbell is one futex word. */
#define _GNU_SOURCE
#include "base/doorbell.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void hoccl_doorbell_announce(struct hoccl_doorbell *bell)
{
    hoccl_exchange(&bell->asleep, 1u);
}

void hoccl_doorbell_cancel(struct hoccl_doorbell *bell)
{
    hoccl_publish(&bell->asleep, 0);
}

void hoccl_doorbell_sleep(struct hoccl_doorbell *bell, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / HOCCL_S), (long)(ns % HOCCL_S)};
    syscall(SYS_futex, &bell->asleep, bell->shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, 1, ns ? &t : NULL, NULL, 0);
    hoccl_publish(&bell->asleep, 0);
}

void hoccl_doorbell_ring(struct hoccl_doorbell *bell)
{
    if (!hoccl_exchange(&bell->asleep, 0u))
        return;
    syscall(SYS_futex, &bell->asleep, bell->shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool hoccl_doorbell_map(int fd, struct hoccl_doorbell **bell)
{
    void *p = mmap(NULL, sizeof **bell, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *bell = p == MAP_FAILED ? NULL : p;
    return *bell != NULL;
}

void hoccl_doorbell_unmap(struct hoccl_doorbell *bell)
{
    if (bell)
        munmap(bell, sizeof *bell);
}

HOCCL_Result hoccl_doorbell_make(struct hoccl_doorbell **bell, int *fd)
{
    int f = memfd_create("hoccl-bell", MFD_CLOEXEC);
    if (f < 0)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "memfd_create: %m");
    if (posix_fallocate(f, 0, sizeof **bell) || !hoccl_doorbell_map(f, bell)) {
        close(f);
        return hoccl_fail(HOCCL_ERR_MEMORY, "a page of shared memory for a thread's bell");
    }
    (*bell)->shared = 1;
    *fd = f;
    return HOCCL_SUCCESS;
}
