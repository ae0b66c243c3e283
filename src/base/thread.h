/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads. Signals are the application's, so its threads take them: none is delivered to one of ours, whose
 * handler might rely on the thread that it runs in, and whose default action might end the program; and no timer interrupts
 * what ours are doing. */
#ifndef HOCCL_BASE_THREAD_H
#define HOCCL_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create, with every signal blocked in the new thread. */
int hoccl_thread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *arg), void *arg);

#endif
