/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's one emulated driver: its lock, how an entry point comes in and goes out, how callers wait. A process
 * that was forked after cuInit has none of the driver's threads and is refused, as the real driver refuses it.
 */
#define _GNU_SOURCE
#include "device.h"
#include "emu.h"
#include "shared.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

struct emu emu = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t emu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* splitmix64's finish over the mixed words. */
uint64_t emu_random(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t z = emu.set.seed + a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Threads of the driver take no signals of the program and are never joined. */
void emu_thread_start(void *(*body)(void *), void *arg, const char *name)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attr, body, arg))
        abort(); /* no threads: nothing can work */
    pthread_setname_np(thread, name);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static CUresult init_once(void)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&emu.work, &attr);
    pthread_cond_init(&emu.progress, &attr);
    pthread_condattr_destroy(&attr);
    CUresult result = emu_settings_read(&emu.set);
    if (result != CUDA_SUCCESS)
        return result;
    result = emu_faults_read();
    if (result != CUDA_SUCCESS)
        return result;
    emu.pid = getpid();
    if (getrandom(&emu.nonce, sizeof emu.nonce, 0) != sizeof emu.nonce)
        emu.nonce = emu_now();
    result = emu_shared_open();
    if (result == CUDA_SUCCESS)
        result = emu_gpus_open();
    emu.ready = result == CUDA_SUCCESS;
    return result;
}

CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&emu.lock);
    CUresult result = CUDA_SUCCESS;
    if (!emu.ready)
        result = init_once();
    else if (emu.pid != getpid())
        result = CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_unlock(&emu.lock);
    return result;
}

CUresult emu_enter(void)
{
    pthread_mutex_lock(&emu.lock);
    if (emu.ready && emu.pid == getpid())
        return CUDA_SUCCESS;
    pthread_mutex_unlock(&emu.lock);
    return CUDA_ERROR_NOT_INITIALIZED;
}

CUresult emu_enter_ctx(CUcontext *c)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *c = emu_ctx_current();
    if (!*c)
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!emu_ctx_valid(*c))
        return emu_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    if ((*c)->error != CUDA_SUCCESS)
        return emu_leave((*c)->error);
    return CUDA_SUCCESS;
}

CUresult emu_leave(CUresult result)
{
    pthread_mutex_unlock(&emu.lock);
    return result;
}

void emu_wait(void)
{
    emu.waiters++;
    pthread_cond_wait(&emu.progress, &emu.lock);
    emu.waiters--;
}

void emu_changed(void)
{
    if (emu.waiters)
        pthread_cond_broadcast(&emu.progress);
}

void emu_ctx_fail(CUcontext ctx, CUresult error)
{
    if (ctx->error == CUDA_SUCCESS)
        ctx->error = error;
    emu_changed();
}
