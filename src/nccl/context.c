/* SPDX-License-Identifier: Apache-2.0 */
/* Eight functions of the driver, from where HOCCL takes its own: what the program's forwarders chose (libhoccl_cuda.a), else
 * the libcuda.so.1 that the process has. A program of the CUDA runtime has no forwarders and gets the real one. */
#include "nccl/context.h"

#include "nccl/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern void *hoccl_cuda_driver(void) __attribute__((weak));
extern int hoccl_cuda_driver_chosen(void) __attribute__((weak));

static struct {
    int (*init)(unsigned int);
    int (*device_count)(int *);
    int (*device_get)(int *, int);
    int (*retain)(shim_context *, int);
    int (*get_current)(shim_context *);
    int (*push)(shim_context);
    int (*pop)(shim_context *);
    int (*stream_id)(cudaStream_t, unsigned long long *);
} driver;
static bool found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void)
{
    static const char *const names[] = {"cuInit",          "cuDeviceGetCount",     "cuDeviceGet",         "cuDevicePrimaryCtxRetain",
                                        "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamGetId"};
    enum { FUNCTIONS = sizeof names / sizeof *names };
    void *functions[FUNCTIONS];
    _Static_assert(sizeof functions == sizeof driver, "a name for each function");
    void *h = hoccl_cuda_driver ? hoccl_cuda_driver() : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!h && !hoccl_cuda_driver)
        h = dlopen("libcuda.so.1", RTLD_NOW);
    for (int i = 0; i < FUNCTIONS; i++) {
        functions[i] = h ? dlsym(h, names[i]) : NULL;
        if (!functions[i])
            return;
    }
    memcpy(&driver, functions, sizeof driver);
    found = !driver.init(0);
}

static bool have_driver(void)
{
    pthread_once(&once, find);
    return found;
}

/* The driver reads these when it starts, and the first call of NCCL comes too late for that: so here, where the library is
 * loaded (device/driver.c says why). */
__attribute__((constructor)) static void ask_of_driver(void)
{
    void *present = hoccl_cuda_driver_chosen ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (present)
        dlclose(present);
    if (present || (hoccl_cuda_driver_chosen && hoccl_cuda_driver_chosen()))
        return;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

shim_context shim_context_here(void)
{
    shim_context context = NULL;
    if (!have_driver() || driver.get_current(&context))
        return NULL;
    if (!context && shim_context_of(0, &context))
        return NULL;
    return context;
}

ncclResult_t shim_context_devices(int *count)
{
    if (!have_driver() || driver.device_count(count))
        return shim_fail(ncclUnhandledCudaError, "no CUDA driver, or it finds no device");
    return ncclSuccess;
}

ncclResult_t shim_context_of(int device, shim_context *context)
{
    int ordinal;
    if (!have_driver() || driver.device_get(&ordinal, device) || driver.retain(context, ordinal))
        return shim_fail(ncclUnhandledCudaError, "the primary context of device %d cannot be had", device);
    return ncclSuccess;
}

bool shim_context_enter(shim_context context)
{
    shim_context now = NULL;
    if (!context || driver.get_current(&now) || now == context)
        return false;
    return !driver.push(context);
}

void shim_context_leave(bool entered)
{
    shim_context context;
    if (entered)
        driver.pop(&context);
}

ncclResult_t shim_context_stream(shim_context context, cudaStream_t stream, unsigned long long *id)
{
    bool entered = shim_context_enter(context);
    int e = have_driver() ? driver.stream_id(stream, id) : -1;
    shim_context_leave(entered);
    if (e)
        return shim_fail(ncclInvalidArgument, "stream %p is none of the communicator's device (cuStreamGetId: %d)", (void *)stream, e);
    return ncclSuccess;
}
