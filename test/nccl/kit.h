/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of NCCL's interface share, beside the ranks of test/conform/ranks.h: results of NCCL as faults of a rank,
 * and buffers whose every byte says from whom to whom it goes. */
#ifndef NCCL_KIT_H
#define NCCL_KIT_H

#include "../conform/ranks.h"

#include "nccl/nccl_abi.h"

/* Note a fault unless the call succeeds; unless it fails with this result and these words in ncclGetLastError. */
#define NCCL_OK(rank, call) nccl_ok((rank), (call), #call, __FILE__, __LINE__)
#define NCCL_FAILS(rank, call, result, words) nccl_fails((rank), (call), (result), (words), #call, __FILE__, __LINE__)

bool nccl_ok(struct rank *rank, ncclResult_t result, const char *call, const char *file, int line);
bool nccl_fails(struct rank *rank, ncclResult_t result, ncclResult_t wanted, const char *words, const char *call, const char *file,
                int line);

/* The same in a cmocka test's own thread. */
void nccl_good(ncclResult_t result);
void nccl_bad(ncclResult_t result, ncclResult_t wanted, const char *words);

/* Write or verify bytes of device memory that go from one rank to another; `key` tells rounds apart. */
bool nccl_fill(struct rank *rank, void *buf, size_t bytes, int from, int to, unsigned key);
bool nccl_verify(struct rank *rank, const void *buf, size_t bytes, int from, int to, unsigned key);

/* Wait for the stream and ask for the communicator's error. */
bool nccl_sync(struct rank *rank, ncclComm_t comm, CUstream stream);

/* Wait until a non-blocking communicator is no longer in progress (20 s): its state. */
ncclResult_t nccl_settled(ncclComm_t comm);

#endif
