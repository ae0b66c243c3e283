/* SPDX-License-Identifier: Apache-2.0 */
/* See reach.h. */
#include "p2p/reach.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"

#define LIMIT (5 * HOCCL_S)

bool hoccl_reach_open(struct hoccl_reach *reach, const struct hoccl_device *device, const struct hoccl_gate *gate,
                      struct hoccl_flag_pool *flags, int lines)
{
    *reach = (struct hoccl_reach){.gate = gate, .flags = flags};
    return !hoccl_device_memory_open(device, device->ordinal, (size_t)lines * HOCCL_REACH_LINE, &reach->memory) &&
           !hoccl_driver.StreamCreateWithPriority(&reach->stream, CU_STREAM_NON_BLOCKING, 0) &&
           !hoccl_flag_take(flags, &reach->landing);
}

void hoccl_reach_close(struct hoccl_reach *reach)
{
    if (reach->stuck) {
        hoccl_log(HOCCL_LOG_WARN, "a copy of 64 bytes at start-up has not ended within 5 s: another thread may sit in cudaFree, "
                  "cudaFreeHost or a module load; %zu bytes of GPU memory are kept for it", reach->memory.bytes);
        return;
    }
    if (reach->landing.host)
        hoccl_flag_give(reach->flags, &reach->landing);
    if (reach->stream)
        hoccl_driver.StreamDestroy(reach->stream);
    hoccl_device_memory_close(&reach->memory);
}

/* What has been put on the stream ends; false: it does not, or the driver complains. */
static bool finish(struct hoccl_reach *reach)
{
    uint64_t begun = hoccl_now();
    CUresult r;
    while ((r = hoccl_driver.StreamQuery(reach->stream)) == CUDA_ERROR_NOT_READY && hoccl_now() - begun < LIMIT)
        hoccl_sleep(10 * HOCCL_US);
    reach->stuck |= r == CUDA_ERROR_NOT_READY;
    return r == CUDA_SUCCESS;
}

bool hoccl_reach_try(struct hoccl_reach *reach, uint32_t first, CUdeviceptr there, int i)
{
    CUdeviceptr words = reach->gate->memory.address + 4ull * first, back = hoccl_reach_line(reach->memory.address, i);
    bool good = !hoccl_driver.MemcpyDtoDAsync(there, words, HOCCL_REACH_LINE, reach->stream) &&
                !hoccl_driver.MemcpyDtoDAsync(back, there, HOCCL_REACH_LINE, reach->stream);
    return finish(reach) && good;
}

bool hoccl_reach_lost(struct hoccl_reach *reach, int i, uint32_t first)
{
    CUdeviceptr line = hoccl_reach_line(reach->memory.address, i);
    if (reach->stuck || hoccl_driver.MemcpyDtoHAsync(reach->landing.host, line, HOCCL_REACH_LINE, reach->stream) || !finish(reach))
        return false;
    for (uint32_t w = 0; w < HOCCL_REACH_LINE / 4; w++)
        if (hoccl_observe(reach->landing.host + w) != first + w)
            return true;
    return false;
}

bool hoccl_reach_confirm(const struct hoccl_device *device, const struct hoccl_gate *gate, struct hoccl_flag_pool *flags,
                         CUdeviceptr there)
{
    struct hoccl_reach reach;
    uint32_t first = (uint32_t)(hoccl_now() % HOCCL_REACH_FIRSTS);
    bool tried = hoccl_reach_open(&reach, device, gate, flags, 1) && hoccl_reach_try(&reach, first, there, 0);
    bool lost = tried && hoccl_reach_lost(&reach, 0, first);
    hoccl_reach_close(&reach);
    return !lost;
}
