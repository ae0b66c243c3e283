/* SPDX-License-Identifier: Apache-2.0 */
/* Which libcuda: the one that the program's forwarders chose (libhoccl_cuda.a, linked by hoccl.pc: real if there is a
 * GPU, else emulated); without forwarders the one the process has loaded already, else the system's. So a program that
 * was not linked with the forwarders never meets the emulator. */
#include "device/driver.h"

#include "base/error.h"
#include "base/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hoccl_driver hoccl_driver;

/* In libhoccl_cuda.a; absent in programs that do not link it. */
extern void *hoccl_cuda_driver(void) __attribute__((weak));
extern const char *hoccl_cuda_driver_name(void) __attribute__((weak));
extern const char *hoccl_cuda_driver_kind(void) __attribute__((weak));
extern const char *hoccl_cuda_driver_failure(void) __attribute__((weak));
extern int hoccl_cuda_driver_chosen(void) __attribute__((weak));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int loaded; /* 0 not tried, 1 good, −1 failed; under lock */
static char failure[HOCCL_ERROR_TEXT];

const char *hoccl_driver_error(CUresult r)
{
    const char *s = NULL;
    if (hoccl_driver.GetErrorName && !hoccl_driver.GetErrorName(r, &s) && s)
        return s;
    return "an error without a name";
}

HOCCL_Result hoccl_driver_check(CUresult r, const char *format, ...)
{
    char what[HOCCL_ERROR_TEXT / 2];
    if (r == CUDA_SUCCESS)
        return HOCCL_SUCCESS;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return hoccl_fail(HOCCL_ERR_DEVICE, "%s: %s", what, hoccl_driver_error(r));
}

/* What the driver reads when it starts, so too late if the application has begun to use it. Streams that wait in HOCCL take hardware
 * channels away from kernels: we want as many as there are. And a kernel that is loaded at its first launch, behind an operation,
 * keeps the operation's copies from being made until it has been loaded, which waits for the operation: so all are loaded at once. */
static void ask_of_driver(void)
{
    void *present = hoccl_cuda_driver_chosen ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    bool in_use = hoccl_cuda_driver_chosen ? hoccl_cuda_driver_chosen() : present != NULL;
    if (present)
        dlclose(present);
    if (in_use)
        return;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

/* Whoever has asked for it knows; and one rank of a job is enough to say it. */
static void warn_of_lazy_loading(void)
{
    CUmoduleLoadingMode mode;
    const char *rank = getenv("PMIX_RANK");
    if (rank && strcmp(rank, "0"))
        return;
    if (!getenv("CUDA_MODULE_LOADING") && !hoccl_driver.ModuleGetLoadingMode(&mode) && mode == CU_MODULE_LAZY_LOADING)
        hoccl_log(HOCCL_LOG_WARN, "CUDA was in use before HOCCL and loads kernels at their first launch: one that is launched first behind an "
                  "operation stands in the way of that operation, for ever; set CUDA_MODULE_LOADING=EAGER where the program starts, or call "
                  "HOCCL_Init before CUDA");
}

static void *find(void)
{
    void *h = NULL;
    if (hoccl_cuda_driver) {
        h = hoccl_cuda_driver();
        if (h && hoccl_cuda_driver_name)
            snprintf(hoccl_driver.name, sizeof hoccl_driver.name, "%s", hoccl_cuda_driver_name());
        if (h && hoccl_cuda_driver_kind)
            snprintf(hoccl_driver.kind, sizeof hoccl_driver.kind, "%s", hoccl_cuda_driver_kind());
        return h;
    }
    snprintf(hoccl_driver.name, sizeof hoccl_driver.name, "CUDA driver");
    snprintf(hoccl_driver.kind, sizeof hoccl_driver.kind, "cuda");
    h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return h ? h : dlopen("libcuda.so.1", RTLD_NOW);
}

static HOCCL_Result fill(void *h)
{
    static const struct {
        const char *symbol;
        size_t offset;
    } entries[] = {
#define HOCCL_DRIVER_ENTRY(field, symbol, arguments) {symbol, offsetof(struct hoccl_driver, field)},
        HOCCL_DRIVER_FUNCTIONS(HOCCL_DRIVER_ENTRY)
#undef HOCCL_DRIVER_ENTRY
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *f = dlsym(h, entries[i].symbol);
        if (!f)
            return hoccl_fail(HOCCL_ERR_DEVICE, "the CUDA driver has no %s: HOCCL needs driver 535 (CUDA 12.2) or newer",
                              entries[i].symbol);
        memcpy((char *)&hoccl_driver + entries[i].offset, &f, sizeof f);
    }
    return HOCCL_SUCCESS;
}

/* Those who chose know why; what they say need not be about the machine's driver. */
static HOCCL_Result not_found(void)
{
    if (hoccl_cuda_driver && hoccl_cuda_driver_failure)
        return hoccl_fail(HOCCL_ERR_DEVICE, "no CUDA driver: %s", hoccl_cuda_driver_failure());
    return hoccl_fail(HOCCL_ERR_DEVICE, "no CUDA driver: libcuda.so.1 cannot be loaded (no GPU on this machine, or the driver is not "
                                        "installed; a program linked by pkg-config hoccl can use the emulated GPU)");
}

static HOCCL_Result load(void)
{
    int n = 0;
    ask_of_driver();
    void *h = find();
    if (!h)
        return not_found();
    HOCCL_Result r = fill(h);
    if (r)
        return r;
    r = hoccl_driver_check(hoccl_driver.Init(0), "cuInit");
    if (r)
        return r;
    warn_of_lazy_loading();
    r = hoccl_driver_check(hoccl_driver.DeviceGetCount(&n), "cuDeviceGetCount");
    if (!r && !n)
        r = hoccl_fail(HOCCL_ERR_DEVICE, "the CUDA driver shows no GPU (CUDA_VISIBLE_DEVICES is \"%s\")",
                       getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "");
    return r;
}

HOCCL_Result hoccl_driver_load(void)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!loaded) {
        loaded = load() ? -1 : 1;
        if (loaded < 0)
            snprintf(failure, sizeof failure, "%s", hoccl_error_text());
    }
    if (loaded < 0)
        r = hoccl_fail_again(HOCCL_ERR_DEVICE, failure);
    pthread_mutex_unlock(&lock);
    return r;
}
