/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulator's settings, all from the environment and all read once. A value that makes no sense stops cuInit with
 * a text: a test that believes to have set something must not run without it.
 */
#include "emu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An unsigned number of the environment; false and a text if it is none or out of range. */
static bool number(const char *name, uint64_t min, uint64_t max, uint64_t *out)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return true;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || *text == '-' || value < min || value > max) {
        fprintf(stderr, "HOCCL: %s is \"%s\": a number from %llu to %llu was expected\n", name, text,
                (unsigned long long)min, (unsigned long long)max);
        return false;
    }
    *out = value;
    return true;
}

static bool flag(const char *name, bool *out)
{
    uint64_t value = *out;
    if (!number(name, 0, 1, &value))
        return false;
    *out = value;
    return true;
}

/* HOCCL_EMU_RATE="push=2000,d2h=500": MB/s of each engine. */
static bool rates(uint64_t rate[EMU_CLASSES])
{
    static const char *const name[EMU_CLASSES] = {"sm", "push", "pull", "d2h", "h2d"};
    const char *text = getenv("HOCCL_EMU_RATE");
    while (text && *text) {
        int c = 0;
        while (c < EMU_CLASSES && (strncmp(text, name[c], strlen(name[c])) || text[strlen(name[c])] != '='))
            c++;
        char *end = NULL;
        if (c < EMU_CLASSES)
            rate[c] = strtoull(text + strlen(name[c]) + 1, &end, 10) * 1000000u;
        if (c == EMU_CLASSES || (*end && *end != ',')) {
            fprintf(stderr, "HOCCL: HOCCL_EMU_RATE has \"%s\": expected sm, push, pull, d2h or h2d, = and MB/s\n",
                    text);
            return false;
        }
        text = *end ? end + 1 : end;
    }
    return true;
}

/* A list with commas of one word a GPU, its last one for all that follow: the places of the words among `words`. */
static bool list(const char *name, const char *const *words, int count, int *out)
{
    const char *text = getenv(name);
    for (int gpu = 0; text && *text && gpu < EMU_MAX_DEVICES; gpu++) {
        size_t length = strcspn(text, ",");
        int w = 0;
        while (w < count && (strlen(words[w]) != length || strncmp(text, words[w], length)))
            w++;
        if (w == count) {
            fprintf(stderr, "HOCCL: %s has \"%s\": expected", name, text);
            for (w = 0; w < count; w++)
                fprintf(stderr, " %s", words[w]);
            fprintf(stderr, ", one for each GPU, with commas\n");
            return false;
        }
        out[gpu] = w;
        text += text[length] ? length + 1 : 0;
    }
    return true;
}

/* How NICs and this machine's GPUs get on. */
static bool rdma(struct emu_settings *set)
{
    static const char *const ways[] = {"off", "address", "dmabuf", "pcie"}, *const orders[] = {"none", "owner", "all"};
    static const int order[] = {CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
                                CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES};
    int way[EMU_MAX_DEVICES];
    for (int gpu = 0; gpu < EMU_MAX_DEVICES; gpu++) {
        way[gpu] = EMU_RDMA_PCIE;
        set->order[gpu] = 1;
    }
    if (!list("HOCCL_EMU_RDMA", ways, 4, way) || !list("HOCCL_EMU_RDMA_ORDER", orders, 3, set->order))
        return false;
    for (int gpu = 0; gpu < EMU_MAX_DEVICES; gpu++) {
        set->rdma[gpu] = (enum emu_rdma)way[gpu];
        set->order[gpu] = order[set->order[gpu]];
    }
    return true;
}

/* As the real driver: 8 when unset, at most 32, nonsense is ignored. */
static unsigned connections(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int value = text ? atoi(text) : 0;
    if (value < 1)
        return 8;
    return value > EMU_MAX_CONNECTIONS ? EMU_MAX_CONNECTIONS : (unsigned)value;
}

CUresult emu_settings_read(struct emu_settings *set)
{
    uint64_t gpus = 8, memory = 143771, sms = 132, seed = 1, delay = 0, look = 0;
    *set = (struct emu_settings){.p2p = true, .connections = connections()};
    bool good = number("HOCCL_EMU_DEVICES", 0, EMU_MAX_DEVICES, &gpus) &&
                number("HOCCL_EMU_MEMORY", 16, 1u << 30, &memory) && number("HOCCL_EMU_SMS", 1, 1024, &sms) &&
                number("HOCCL_EMU_SEED", 0, UINT64_MAX, &seed) && number("HOCCL_EMU_DELAY_US", 0, 10000000, &delay) &&
                number("HOCCL_EMU_LOOK_MS", 0, 1000000, &look) &&
                flag("HOCCL_EMU_PEERMEM", &set->peermem) && flag("HOCCL_EMU_REUSE", &set->reuse) &&
                flag("HOCCL_EMU_P2P", &set->p2p) && flag("HOCCL_EMU_LAZY", &set->lazy) && rates(set->rate) && rdma(set);
    const char *loading = getenv("CUDA_MODULE_LOADING");
    set->lazy &= !loading || strcmp(loading, "EAGER") != 0;
    set->gpus = (int)gpus;
    set->memory = memory << 20;
    set->sms = (unsigned)sms;
    set->seed = seed;
    set->delay_us = (unsigned)delay;
    set->look_ms = (unsigned)look;
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
