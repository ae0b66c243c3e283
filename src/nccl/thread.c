/* SPDX-License-Identifier: Apache-2.0 */
/* See thread.h. */
#include "nccl/thread.h"

#include <pthread.h>
#include <signal.h>

int shim_thread_start(void *(*body)(void *arg), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
