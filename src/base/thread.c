/* SPDX-License-Identifier: Apache-2.0 */
/* See thread.h. */
#include "base/thread.h"

#include <signal.h>

int hoccl_thread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *arg), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, attributes, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
