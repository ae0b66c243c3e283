/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices. A machine has HOCCL_EMU_DEVICES GPUs, alike for every process of it: PCI address and UUID follow from the
 * machine's boot id (and HOCCL_EMU_MACHINE, its name) and the GPU's number. CUDA_VISIBLE_DEVICES (ordinals or UUIDs)
 * hides and reorders them. The figures are an H200's.
 */
#include "device.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t fnv(uint64_t hash, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return hash;
}

/* The machine's number: over its boot id and, where several are played on one host, its name. */
static uint64_t machine_number(void)
{
    const char *name = getenv("HOCCL_EMU_MACHINE");
    char id[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, id, sizeof id - 1);
    if (fd >= 0)
        close(fd);
    uint64_t hash = fnv(0xcbf29ce484222325u, id, n > 0 ? (size_t)n : 0);
    return name ? fnv(hash, name, strlen(name)) : hash;
}

static void uuid_of(int gpu, unsigned char uuid[16])
{
    uint64_t hash = emu.machine, low = hash * 0x9e3779b97f4a7c15u + (uint64_t)gpu * 0xbf58476d1ce4e5b9u;
    memcpy(uuid, &hash, 8);
    memcpy(uuid + 8, &low, 8);
    uuid[0] = 0xe0; /* easy to recognise */
    uuid[15] = (unsigned char)gpu;
    uuid[6] = (uuid[6] & 0x0f) | 0x40; /* version 4, variant 1 */
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
}

/* The n-th address of HOCCL_EMU_PCI (a list with commas), or one of our own making. */
static void pci_of(int gpu, struct emu_device *dev)
{
    const char *text = getenv("HOCCL_EMU_PCI");
    for (int i = 0; text && i < gpu; i++) {
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    unsigned domain, bus, device;
    if (text && sscanf(text, "%x:%x:%x", &domain, &bus, &device) == 3) {
        dev->pci_domain = (int)domain;
        dev->pci_bus = (int)bus;
        dev->pci_device = (int)device;
        return;
    }
    dev->pci_bus = 0x18 + gpu * 3;
}

static CUresult add_device(int gpu)
{
    if (emu.devices == EMU_MAX_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    struct emu_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return CUDA_ERROR_OUT_OF_MEMORY;
    dev->ordinal = emu.devices;
    dev->gpu = gpu;
    uuid_of(gpu, dev->uuid);
    pci_of(gpu, dev);
    emu.device[emu.devices++] = dev;
    return CUDA_SUCCESS;
}

static void uuid_text(const unsigned char u[16], char text[48])
{
    snprintf(text, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* An entry of CUDA_VISIBLE_DEVICES, an ordinal or (the beginning of) a UUID; -1: none such, the list ends here. */
static int gpu_named(const char *entry, size_t length)
{
    char *end;
    long n = strtol(entry, &end, 10);
    if (end == entry + length && length > 0)
        return n >= 0 && n < emu.set.gpus ? (int)n : -1;
    for (int gpu = 0; gpu < emu.set.gpus; gpu++) {
        unsigned char uuid[16];
        char text[48];
        uuid_of(gpu, uuid);
        uuid_text(uuid, text);
        if (length > 4 && !strncmp(text, entry, length))
            return gpu;
    }
    return -1;
}

CUresult emu_gpus_open(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    CUresult result = CUDA_SUCCESS;
    emu.machine = machine_number();
    emu.devices = 0;
    if (!visible)
        for (int gpu = 0; gpu < emu.set.gpus && result == CUDA_SUCCESS; gpu++)
            result = add_device(gpu);
    while (visible && *visible && result == CUDA_SUCCESS) {
        size_t length = strcspn(visible, ",");
        int gpu = gpu_named(visible, length);
        if (gpu < 0)
            break;
        result = add_device(gpu);
        visible += length + (visible[length] == ',');
    }
    if (result == CUDA_SUCCESS && !emu.devices)
        return CUDA_ERROR_NO_DEVICE;
    return result;
}

struct emu_device *emu_device_at(CUdevice dev)
{
    return dev >= 0 && dev < emu.devices ? emu.device[dev] : NULL;
}

struct emu_device *emu_device_of_gpu(int gpu)
{
    for (int i = 0; i < emu.devices; i++)
        if (emu.device[i]->gpu == gpu)
            return emu.device[i];
    return NULL;
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!count)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *count = emu.devices;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!device || !emu_device_at(ordinal))
        return emu_leave(device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
    *device = ordinal;
    return emu_leave(CUDA_SUCCESS);
}

/* Enters and finds the device; the lock is held on success. */
static CUresult enter_device(CUdevice dev, const void *out, struct emu_device **found)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *found = emu_device_at(dev);
    if (!*found)
        return emu_leave(CUDA_ERROR_INVALID_DEVICE);
    return out ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, name, &d);
    if (result != CUDA_SUCCESS)
        return result;
    snprintf(name, len > 0 ? (size_t)len : 0, "HOCCL emulated GPU");
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, uuid, &d);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(uuid->bytes, d->uuid, sizeof d->uuid);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, text, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (len < 13)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    snprintf(text, (size_t)len, "%04X:%02X:%02X.0", (unsigned)d->pci_domain, (unsigned)d->pci_bus,
             (unsigned)d->pci_device);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text)
{
    unsigned domain = 0, bus, device;
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!dev || !text ||
        (sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3 &&
         (domain = 0, sscanf(text, "%x:%x", &bus, &device)) != 2))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < emu.devices; i++) {
        struct emu_device *d = emu.device[i];
        if (d->pci_domain == (int)domain && d->pci_bus == (int)bus && d->pci_device == (int)device) {
            *dev = i;
            return emu_leave(CUDA_SUCCESS);
        }
    }
    return emu_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, bytes, &d);
    if (result != CUDA_SUCCESS)
        return result;
    *bytes = emu.set.memory;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, can, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_at(peer))
        return emu_leave(CUDA_ERROR_INVALID_DEVICE);
    *can = emu.set.p2p && emu_device_at(peer) != d;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice src, CUdevice dst)
{
    struct emu_device *d;
    CUresult result = enter_device(src, value, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_at(dst) || src == dst)
        return emu_leave(CUDA_ERROR_INVALID_DEVICE);
    *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : emu.set.p2p;
    return emu_leave(CUDA_SUCCESS);
}
