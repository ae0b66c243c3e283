/* SPDX-License-Identifier: Apache-2.0 */
/* The gates and the start signal that passes them. A start signal written by a bare memory operation would run in the class of
 * what is in front of it, and be stuck behind another stream's parked wait. So behind gates the signal has a class of its own: a D2H
 * copy of a word that holds the number, or, where transfers need all D2H channels (PUSH), a write behind a copy of the compute class. */
#include "stream/gate.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WORDS 65536
#define TABLE_BYTES (WORDS * sizeof(uint32_t))
#define SCRATCH TABLE_BYTES
#define GATE_BYTES 64
#define PASSING_MOST (50 * HOCCL_MS) /* copies which passed are waited for: longer ones are with the driver, in front of the gate */
#define MANY 32 /* channels: more than streams can be parked */

const char *const hoccl_gate_names[] = {"auto", "none", "push", "h2d", "compute"};

int hoccl_gate_channels(void)
{
    const char *v = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int n = v ? atoi(v) : 8;
    return n < 1 ? 1 : n > 32 ? 32 : n;
}

/* Copy the table on a stream of its own. Nothing waits for the null stream here. */
static HOCCL_Result fill(struct hoccl_gate *gate)
{
    CUstream stream = NULL;
    CUresult q;
    uint32_t *words = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return hoccl_fail(HOCCL_ERR_MEMORY, "no memory for the table of start signals: %m");
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = i;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), "stream");
    if (!r)
        r = hoccl_driver_check(hoccl_driver.MemcpyHtoDAsync(gate->memory.address, words, TABLE_BYTES, stream), "start signals");
    while (!r && (q = hoccl_driver.StreamQuery(stream)) != CUDA_SUCCESS)
        if (q != CUDA_ERROR_NOT_READY)
            r = hoccl_driver_check(q, "start signals");
    if (stream)
        hoccl_driver.StreamDestroy(stream);
    munmap(words, TABLE_BYTES);
    return r;
}

enum hoccl_gate_choice hoccl_gate_kind(int channels, int other)
{
    enum hoccl_gate_choice asked = hoccl_settings.gate;
    if (asked == HOCCL_GATE_NONE || (asked == HOCCL_GATE_AUTO && channels >= MANY))
        return HOCCL_GATE_NONE;
    if (other < 0)
        return HOCCL_GATE_COMPUTE;
    return asked == HOCCL_GATE_AUTO ? HOCCL_GATE_H2D : asked;
}

HOCCL_Result hoccl_gate_open(struct hoccl_gate *gate, const struct hoccl_device *device, int other,
                             struct hoccl_flag_pool *flags)
{
    struct hoccl_gate g = {.channels = hoccl_gate_channels(), .always = hoccl_settings.gate != HOCCL_GATE_AUTO};
    g.kind = hoccl_gate_kind(g.channels, other);
    if (g.kind == HOCCL_GATE_COMPUTE && other < 0 && g.channels == 1)
        hoccl_log(HOCCL_LOG_WARN, "CUDA_DEVICE_MAX_CONNECTIONS is 1 and this process sees no other GPU: while a stream waits in HOCCL no "
                  "kernel of this process runs; set it to 32");
    HOCCL_Result r = hoccl_device_memory_open(device, device->ordinal, TABLE_BYTES + GATE_BYTES, &g.memory);
    if (r)
        return r;
    r = hoccl_flag_take(flags, &g.source);
    if (!r)
        r = fill(&g);
    if (!r && g.kind == HOCCL_GATE_PUSH)
        r = hoccl_device_memory_open(device, other, GATE_BYTES, &g.target);
    if (r)
        hoccl_gate_close(&g, flags);
    else
        *gate = g;
    return r;
}

HOCCL_Result hoccl_gate_suit_wire(struct hoccl_gate *gate, const struct hoccl_device *device, int other, bool settled)
{
    if (gate->kind != HOCCL_GATE_H2D)
        return HOCCL_SUCCESS;
    if (gate->always || settled || other < 0)
        return hoccl_fail(HOCCL_ERR_UNSUPPORTED,
                          "ranks on other nodes need copies from host memory, and %s keeps those for gates: set "
                          "CUDA_DEVICE_MAX_CONNECTIONS=32 (then there is no gate), or HOCCL_GATE=push",
                          gate->always ? "HOCCL_GATE=h2d" : "an earlier communicator of this process");
    HOCCL_Result r = hoccl_device_memory_open(device, other, GATE_BYTES, &gate->target);
    if (!r) {
        gate->kind = HOCCL_GATE_PUSH;
        hoccl_log(HOCCL_LOG_INFO, "%d hardware channels and ranks on other nodes: gates are pushes, and what moves within the node is "
                  "staged through host memory; CUDA_DEVICE_MAX_CONNECTIONS=32 avoids both", gate->channels);
    }
    return r;
}

void hoccl_gate_close(struct hoccl_gate *gate, struct hoccl_flag_pool *flags)
{
    hoccl_flag_give(flags, &gate->source);
    hoccl_device_memory_close(&gate->memory);
    hoccl_device_memory_close(&gate->target);
}

bool hoccl_gate_needed(const struct hoccl_gate *gate, int parked)
{
    if (gate->kind == HOCCL_GATE_NONE)
        return false;
    return gate->always || parked > gate->channels / 2;
}

/* Each side first counts itself, then looks at the other's count, both by read-modify-writes: not both can miss the other. */
void hoccl_gate_bar(struct hoccl_gate *gate)
{
    uint64_t until = hoccl_now() + PASSING_MOST;
    hoccl_fetch_add(&gate->gated, 1u);
    while (gate->kind == HOCCL_GATE_H2D && hoccl_fetch_add(&gate->passing, 0u) && hoccl_now() < until)
        sched_yield();
}

void hoccl_gate_unbar(struct hoccl_gate *gate)
{
    hoccl_fetch_add(&gate->gated, -1u);
}

bool hoccl_gate_queue(struct hoccl_gate *gate)
{
    uint32_t most = (uint32_t)gate->channels - 1;
    if (hoccl_fetch_add(&gate->queued, 1u) < most || gate->kind != HOCCL_GATE_COMPUTE)
        return true;
    hoccl_gate_unqueue(gate);
    return false;
}

void hoccl_gate_unqueue(struct hoccl_gate *gate)
{
    hoccl_fetch_add(&gate->queued, -1u);
}

bool hoccl_gate_barred(const struct hoccl_gate *gate)
{
    return hoccl_observe(&gate->gated) != 0;
}

bool hoccl_gate_pass(struct hoccl_gate *gate)
{
    hoccl_fetch_add(&gate->passing, 1u);
    if (!hoccl_fetch_add(&gate->gated, 0u))
        return true;
    hoccl_fetch_add(&gate->passing, -1u);
    return false;
}

void hoccl_gate_land(struct hoccl_gate *gate, uint32_t n)
{
    if (n)
        hoccl_fetch_add(&gate->passing, -n);
}

bool hoccl_gate_bars_push(const struct hoccl_gate *gate)
{
    return gate->kind == HOCCL_GATE_PUSH;
}

CUdeviceptr hoccl_gate_scratch(const struct hoccl_gate *gate)
{
    return gate->memory.address + SCRATCH;
}

/* A plain copy of this size goes through a compute channel and needs no SM. */
static HOCCL_Result enter_compute(const struct hoccl_gate *gate, CUstream stream, const char *what)
{
    return hoccl_driver_check(hoccl_driver.MemcpyHtoDAsync(hoccl_gate_scratch(gate), gate->source.host, GATE_BYTES, stream), what);
}

/* H2D: two rows, which the engine takes. */
HOCCL_Result hoccl_gate_enqueue(const struct hoccl_gate *gate, CUstream stream)
{
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = gate->source.host,
                          .srcPitch = GATE_BYTES / 2,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = hoccl_gate_scratch(gate),
                          .dstPitch = GATE_BYTES / 2,
                          .WidthInBytes = GATE_BYTES / 2,
                          .Height = 2};
    if (gate->kind == HOCCL_GATE_PUSH)
        return hoccl_driver_check(
            hoccl_driver.MemcpyDtoDAsync(gate->target.address, hoccl_gate_scratch(gate), GATE_BYTES, stream), "enqueueing a gate");
    if (gate->kind == HOCCL_GATE_COMPUTE)
        return enter_compute(gate, stream, "enqueueing a gate");
    return hoccl_driver_check(hoccl_driver.Memcpy2DAsync(&copy, stream), "enqueueing a gate");
}

HOCCL_Result hoccl_gate_signal(const struct hoccl_gate *gate, CUstream stream, const struct hoccl_flag *flag, uint32_t value)
{
    static const char what[] = "enqueueing a start signal";
    uint32_t low = value & (WORDS - 1);
    if (gate->kind == HOCCL_GATE_PUSH) {
        HOCCL_Result r = enter_compute(gate, stream, what);
        return r ? r : hoccl_driver_check(hoccl_driver.StreamWriteValue32(stream, flag->device, low, 0), what);
    }
    CUdeviceptr word = gate->memory.address + low * sizeof(uint32_t);
    return hoccl_driver_check(hoccl_driver.MemcpyDtoHAsync(flag->host, word, sizeof(uint32_t), stream), what);
}
