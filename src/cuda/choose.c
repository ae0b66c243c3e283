/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the driver, once for a process: the machine's libcuda.so.1 if it initialises and finds a device, else the
 * emulated one. A program never links a driver, so the same binary runs on both.
 *
 * The emulator is found relative to what it was built or installed with: from the object that holds this code (the
 * program, or a library that carries the archive) upwards in the build tree, then beside it as installed
 * (../lib/hoccl/emu), then where it was configured to be installed. A file on the way that belongs to somebody else
 * is not taken. It is opened by its path; its SONAME is not libcuda.so.1, so that a later dlopen("libcuda.so.1")
 * does not get it by name.
 */
#define _GNU_SOURCE
#include "forward.h"
#include "hoccl_cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *driver;
static char driver_name[64] = "no driver";
static const char *driver_kind = "none";
static char failure[PATH_MAX + 256]; /* why there is no driver */
static int chosen; /* 1: the choice has been made */

VISIBLE void *hoccl_cuda_driver(void);
VISIBLE const char *hoccl_cuda_driver_name(void);
VISIBLE const char *hoccl_cuda_driver_kind(void);
VISIBLE const char *hoccl_cuda_driver_failure(void);
VISIBLE int hoccl_cuda_driver_chosen(void);
VISIBLE int hoccl_cuda_sm_work(uint64_t *work);

/* One line, one write: ranks share standard error. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[PATH_MAX + 256];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    strcat(line, "\n");
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        return;
}

/* There will be no driver: said now, and kept for who asks. */
__attribute__((format(printf, 1, 2))) static void give_up(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(failure, sizeof failure, format, args);
    va_end(args);
    say("HOCCL: %s", failure);
}

/* What may hide devices, for a text. */
static const char *hidden(void)
{
    return getenv("CUDA_VISIBLE_DEVICES") ? ", see CUDA_VISIBLE_DEVICES" : "";
}

/* Opens the machine's driver; a text in why if it is of no use here. */
static void *open_real(char *why, size_t size)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(why, size, "no libcuda.so.1");
        return NULL;
    }
    CUresult (*init)(unsigned int);
    CUresult (*count)(int *);
    *(void **)&init = dlsym(handle, "cuInit");
    *(void **)&count = dlsym(handle, "cuDeviceGetCount");
    int devices = 0;
    CUresult result = init && count ? init(0) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS)
        result = count(&devices);
    if (result == CUDA_SUCCESS && devices > 0)
        return handle;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NO_DEVICE)
        snprintf(why, size, "libcuda.so.1 finds no device%s", hidden());
    else
        snprintf(why, size, "libcuda.so.1: cuInit returns error %d", (int)result);
    return NULL; /* the handle stays: unloading a driver that has been initialised is not safe */
}

/* A file to load code from: ours, the superuser's, or of the same owner as the program. */
static int trusted(const char *path, uid_t owner)
{
    struct stat st;
    if (stat(path, &st))
        return 0;
    return st.st_uid == 0 || st.st_uid == geteuid() || st.st_uid == owner;
}

/* Looks upwards from the folder of the file for the build tree's emulator or the installed one. */
static void *open_emulator_near(const char *file)
{
    static const char *const places[] = {"src/emu/.libs/libcuda.so.1", "lib/hoccl/emu/libcuda.so.1"};
    char folder[PATH_MAX], path[PATH_MAX + 64];
    struct stat st;
    if (!realpath(file, folder) || stat(folder, &st))
        return NULL;
    for (int level = 0; level < 5; level++) {
        char *slash = strrchr(folder, '/');
        if (!slash)
            return NULL;
        *slash = '\0';
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, places[i]);
            void *handle = trusted(path, st.st_uid) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
            if (handle)
                return handle;
        }
    }
    return NULL;
}

static void *open_emulator(char *why, size_t size)
{
    Dl_info info;
    void *handle = NULL;
    if (dladdr(&once, &info) && info.dli_fname)
        handle = open_emulator_near(info.dli_fname);
    if (!handle)
        handle = open_emulator_near("/proc/self/exe");
    if (!handle)
        handle = dlopen(HOCCL_EMU_INSTALLED, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(why, size, "%s", dlerror());
        return NULL;
    }
    CUresult (*init)(unsigned int);
    *(void **)&init = dlsym(handle, "cuInit");
    CUresult result = init ? init(0) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS)
        return handle;
    if (result == CUDA_ERROR_NO_DEVICE)
        snprintf(why, size, "there are none%s%s", getenv("HOCCL_EMU_DEVICES") ? ", see HOCCL_EMU_DEVICES" : "", hidden());
    else
        snprintf(why, size, "its cuInit returns error %d", (int)result);
    return NULL;
}

static void name_driver(void)
{
    if (dlsym(driver, "hocclEmuSmWork")) {
        snprintf(driver_name, sizeof driver_name, "emulated GPU");
        driver_kind = "emulated";
        return;
    }
    CUresult (*get)(int *);
    int version = 0;
    driver_kind = "cuda";
    *(void **)&get = dlsym(driver, "cuDriverGetVersion");
    if (get && get(&version) == CUDA_SUCCESS)
        snprintf(driver_name, sizeof driver_name, "NVIDIA driver, CUDA %d.%d", version / 1000, version % 1000 / 10);
}

static void choose(void)
{
    __atomic_store_n(&chosen, 1, __ATOMIC_RELEASE);
    const char *wish = getenv("HOCCL_DEVICE");
    char why[128] = "";
    if (!wish || !*wish)
        wish = "auto";
    if (strcmp(wish, "auto") && strcmp(wish, "cuda") && strcmp(wish, "emu")) {
        give_up("HOCCL_DEVICE is \"%s\": it must be auto, cuda or emu; no driver is loaded", wish);
        return;
    }
    if (strcmp(wish, "emu"))
        driver = open_real(why, sizeof why);
    if (!driver && !strcmp(wish, "cuda"))
        give_up("HOCCL_DEVICE is cuda, but %s", why);
    if (!driver && strcmp(wish, "cuda")) {
        char why_not[PATH_MAX + 128] = "";
        driver = open_emulator(why_not, sizeof why_not);
        if (!driver)
            give_up("%s%s%sno emulated GPU can be used (%s)", *why ? "no GPU found (" : "", why, *why ? "), and " : "", why_not);
        else if (*why)
            say("HOCCL: no GPU found (%s), using the emulated one", why);
    }
    if (driver)
        name_driver();
}

void *hoccl_cuda_driver(void)
{
    pthread_once(&once, choose);
    return driver;
}

const char *hoccl_cuda_driver_name(void)
{
    pthread_once(&once, choose);
    return driver_name;
}

const char *hoccl_cuda_driver_kind(void)
{
    pthread_once(&once, choose);
    return driver_kind;
}

const char *hoccl_cuda_driver_failure(void)
{
    pthread_once(&once, choose);
    return failure;
}

int hoccl_cuda_driver_chosen(void)
{
    return __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
}

int hoccl_cuda_sm_work(uint64_t *work)
{
    CUresult (*get)(uint64_t *);
    if (!hoccl_cuda_driver())
        return 0;
    *(void **)&get = dlsym(driver, "hocclEmuSmWork");
    return get && get(work) == CUDA_SUCCESS;
}

void *hoccl_cuda_find(struct hoccl_forward *self)
{
    void *entry = __atomic_load_n(&self->entry, __ATOMIC_ACQUIRE);
    if (entry || !hoccl_cuda_driver())
        return entry;
    entry = dlsym(driver, self->name);
    __atomic_store_n(&self->entry, entry, __ATOMIC_RELEASE);
    return entry;
}

CUresult hoccl_cuda_missing(const struct hoccl_forward *self)
{
    (void)self;
    return driver ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_NO_DEVICE;
}
