/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for non-blocking calls. */
#ifndef HOCCL_NCCL_THREAD_H
#define HOCCL_NCCL_THREAD_H

/* Starts a thread that ends by itself, with every signal blocked: signals are the application's. An errno value, 0 for success. */
int shim_thread_start(void *(*body)(void *arg), void *arg);

#endif
