/* SPDX-License-Identifier: Apache-2.0 */
/* How many operations this library has handed to HOCCL: the proof that it, and not another libnccl, has done them. */
#ifndef HOCCL_NCCL_COUNT_H
#define HOCCL_NCCL_COUNT_H

enum shim_kind { SHIM_SEND, SHIM_RECV, SHIM_ALLGATHER, SHIM_ALLTOALL, SHIM_BROADCAST, SHIM_GATHER, SHIM_SCATTER, SHIM_KINDS };

/* So many more have been posted. */
void shim_count(enum shim_kind kind, unsigned long n);

/* One call has been refused. */
void shim_count_refused(void);

#endif
