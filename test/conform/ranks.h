/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads of a test program: each has its own GPU's context current and a communicator of all of them.
 *
 *   static void body(struct rank *r) { … RANK_OK(r, HOCCL_Send(…)); … }
 *   ranks_run(4, body, arg);      from a cmocka test: fails it with the first thing that went wrong on any rank
 *
 * cmocka's own checks jump, which only its own thread may do, so bodies use RANK_OK, RANK_CUDA and RANK_TRUE: each notes
 * the first fault and returns false. A rank that has noted a fault aborts its communicator at its end, so that nobody
 * waits for it. A run that lasts longer than RANKS_SECONDS ends the program with a text.
 *
 * Programs link src/cuda/libhoccl_cuda.a with -Wl,-u,hoccl_cuda_driver, and libhoccl.la.
 */
#ifndef CONFORM_RANKS_H
#define CONFORM_RANKS_H

#include <cuda.h>
#include <hoccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#ifndef RANKS_SECONDS
#define RANKS_SECONDS 120
#endif

struct rank {
    int rank, size;
    CUcontext context; /* the primary one of device `rank`, current in the rank's thread */
    HOCCL_Comm comm;   /* a body that ends it sets it to HOCCL_COMM_NULL */
    void *arg;
    bool failed;
    char text[768]; /* the first fault */

    /* ranks.c */
    HOCCL_UniqueId id;
    bool bare;
    void (*body)(struct rank *);
    pthread_t thread;
};

/* The body on `size` ranks, each with a communicator of all in r->comm, which is destroyed afterwards. */
void ranks_run(int size, void (*body)(struct rank *), void *arg);

/* The same without a communicator: the body finds an id of its own making in r->id. */
void ranks_run_bare(int size, void (*body)(struct rank *), void *arg);

/* Note a fault unless the result is success (the condition true). */
#define RANK_OK(rank, call) rank_result((rank), (call), #call, __FILE__, __LINE__)
#define RANK_CUDA(rank, call) rank_cuda((rank), (call), #call, __FILE__, __LINE__)
#define RANK_TRUE(rank, condition) rank_true((rank), (condition), #condition, __FILE__, __LINE__)

/* The call must fail with this result, and its text must contain these words (NULL: any text but none). */
#define RANK_FAILS(rank, call, result, words) rank_fails((rank), (call), (result), (words), #call, __FILE__, __LINE__)

bool rank_result(struct rank *rank, HOCCL_Result result, const char *call, const char *file, int line);
bool rank_cuda(struct rank *rank, CUresult result, const char *call, const char *file, int line);
bool rank_true(struct rank *rank, bool condition, const char *text, const char *file, int line);
bool rank_fails(struct rank *rank, HOCCL_Result result, HOCCL_Result wanted, const char *words, const char *call,
                const char *file, int line);

/* All ranks of the communicator send `bytes` to one another on one stream in one group, and every byte is checked.
 * `key` makes the data of one exchange differ from another's. It frees memory, so no stream of the process may wait in
 * an operation that needs more of this test to complete. False with a fault noted. */
bool rank_exchange(struct rank *rank, HOCCL_Comm comm, size_t bytes, unsigned key);

/* What this process holds: open descriptors, threads. */
int ranks_descriptors(void);
int ranks_threads(void);

/* Wait until both are at most these, for 5 s at most; false if they stay above. */
bool ranks_settle(int descriptors, int threads);

/* Wait until neither has changed for a moment, and say what they are. */
void ranks_hold(int *descriptors, int *threads);

/* The emulator with so many GPUs, unless the environment chooses a driver; first thing in main. */
void ranks_environment(int devices);

#endif
