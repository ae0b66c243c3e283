/* SPDX-License-Identifier: Apache-2.0 */
/* A doorbell is one futex word. */
#include "base/doorbell.h"

#include "base/atomic.h"
#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
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
    syscall(SYS_futex, &bell->asleep, FUTEX_WAIT_PRIVATE, 1, ns ? &t : NULL, NULL, 0);
    hoccl_publish(&bell->asleep, 0);
}

void hoccl_doorbell_ring(struct hoccl_doorbell *bell)
{
    if (!hoccl_exchange(&bell->asleep, 0u))
        return;
    syscall(SYS_futex, &bell->asleep, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
