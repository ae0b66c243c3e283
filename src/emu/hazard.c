/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's process-wide lock. cuMemFree, cuMemFreeHost and a module load take it and then wait for their GPU; so
 * do (their waiting is measured, their holding it assumed) cuIpcCloseMemHandle and cuMemHostUnregister, a
 * synchronous copy while a blocking stream is parked, and a copy into pageable memory on the NULL stream. Meanwhile copies, memsets, event records, kernel and graph
 * launches of other threads wait for the lock; writes, waits, batches, stream queries, pointer attributes and VMM
 * calls do not ask for it. With something parked that only such a blocked submission would release, the process
 * hangs, as it does on a real GPU.
 */
#include "device.h"

static bool held;
static pthread_t holder;

void emu_hazard_pass(void)
{
    while (held && !pthread_equal(holder, pthread_self()))
        emu_wait();
}

void emu_hazard_hold(void)
{
    emu_hazard_pass();
    held = true;
    holder = pthread_self();
}

void emu_hazard_take(struct emu_device *dev)
{
    emu_hazard_hold();
    emu_drain(dev, NULL);
}

void emu_hazard_give(void)
{
    held = false;
    emu_changed();
}
