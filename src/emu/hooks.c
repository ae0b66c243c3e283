/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks of hooks.h, and cuGetProcAddress. */
#define _GNU_SOURCE
#include "device.h"

#pragma GCC visibility push(default)
#include "hooks.h"
#pragma GCC visibility pop

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

CUresult hocclEmuSmWork(uint64_t *work)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *work = 0;
    for (int i = 0; i < emu.devices; i++)
        *work += emu.device[i]->sm_work;
    return emu_leave(CUDA_SUCCESS);
}

static CUresult enter_device(CUdevice dev, struct emu_device **d)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *d = emu_device_at(dev);
    return *d ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult hocclEmuDeviceSmWork(CUdevice dev, uint64_t *work)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    *work = d->sm_work;
    return emu_leave(CUDA_SUCCESS);
}

CUresult hocclEmuEngineCount(CUdevice dev, enum hoccl_emu_engine engine, uint64_t *ops, uint64_t *bytes)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)engine >= EMU_CLASSES)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *ops = d->engine[engine].ops;
    *bytes = d->engine[engine].bytes;
    return emu_leave(CUDA_SUCCESS);
}

CUresult hocclEmuEngineBusy(CUdevice dev, enum hoccl_emu_engine engine, int *busy)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)engine >= EMU_CLASSES)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *busy = d->engine[engine].current != NULL;
    return emu_leave(CUDA_SUCCESS);
}

CUresult hocclEmuParked(uint64_t *parked, uint64_t *enqueued)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *parked = emu.parked;
    *enqueued = emu.seq;
    return emu_leave(CUDA_SUCCESS);
}

/* The newest version of a function: cuMemAlloc is asked for, cuMemAlloc_v2 is what the driver has. */
static void *newest(const char *symbol, const char *suffix)
{
    Dl_info info;
    char name[128];
    if (!dladdr((void *)&emu, &info))
        return NULL;
    void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    void *found = NULL;
    for (int version = 4; self && version >= 1 && !found; version--) {
        if (version > 1)
            snprintf(name, sizeof name, "%s_v%d%s", symbol, version, suffix);
        else
            snprintf(name, sizeof name, "%s%s", symbol, suffix);
        found = dlsym(self, name);
    }
    if (self)
        dlclose(self);
    return found;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    if (!symbol || !pfn || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    (void)version; /* one generation of the interface is all there is */
    *pfn = NULL;
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        *pfn = newest(symbol, "_ptsz");
        if (!*pfn)
            *pfn = newest(symbol, "_ptds");
    }
    if (!*pfn)
        *pfn = newest(symbol, "");
    if (status)
        *status = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
