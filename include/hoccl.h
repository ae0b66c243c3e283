/* SPDX-License-Identifier: Apache-2.0 */
/* HOCCL: communication between GPUs that takes no SM.
 *
 * A rank is a member of a communicator and is bound to one GPU. Operations are enqueued on the caller's CUDA streams
 * and keep stream order exactly as a kernel would: they start when the stream reaches them, and work behind them in
 * the stream starts when they have completed. Copy engines, NICs and the GPU's memory operations do the work.
 *
 * Every call returns HOCCL_Result, HOCCL_SUCCESS on success; HOCCL_GetLastError has the text of the calling thread's
 * last error. Counts are elements, not bytes. Device pointers may point anywhere into an allocation. Streams are
 * CUstream (cudaStream_t is the same type); NULL is the legacy default stream, as in CUDA: behind an operation it must not carry copies
 * into pageable memory (doc/tuning.md, "Calls that stop every copy"). This header needs no cuda.h.
 * A child of fork() has none of its parent's communicators and can make none (USAGE), as it has no GPU in CUDA.
 */
#ifndef HOCCL_H
#define HOCCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HOCCL_API __attribute__((visibility("default")))
#else
#define HOCCL_API
#endif

#define HOCCL_VERSION_MAJOR 0
#define HOCCL_VERSION_MINOR 1
#define HOCCL_VERSION_PATCH 0

struct CUstream_st;
/* A CUDA stream: CUstream of the driver API, cudaStream_t of the runtime API. */
typedef struct CUstream_st *HOCCL_Stream;

/* A communicator. A handle carries a generation: one that was destroyed is reported, never followed. */
typedef struct hoccl_comm_handle *HOCCL_Comm;

/* All ranks of the job (mpirun, srun), or this process alone. Valid between HOCCL_Init and HOCCL_Finalize. */
#define HOCCL_COMM_WORLD ((HOCCL_Comm)1)
#define HOCCL_COMM_NULL ((HOCCL_Comm)0)

/* An operation that has been checked and can be started many times. Its handle carries a generation, too. */
typedef struct hoccl_request_handle *HOCCL_Request;
#define HOCCL_REQUEST_NULL ((HOCCL_Request)0)

/* Results. Those marked * are sticky: every later call of the communicator returns the same, with the same text. */
typedef enum {
    HOCCL_SUCCESS = 0,
    HOCCL_ERR_ARGUMENT,    /* a wrong argument: nothing was posted, the communicator stays good (ncclInvalidArgument, MPI_ERR_ARG) */
    HOCCL_ERR_USAGE,       /* a call in a state that does not allow it: before Init, End without Start, two threads at once (ncclInvalidUsage) */
    HOCCL_ERR_UNSUPPORTED, /* this memory, device or situation has no path in this version */
    HOCCL_ERR_MEMORY,      /* host or device memory could not be had */
    HOCCL_ERR_SYSTEM,      /* a system call failed (ncclSystemError) */
    HOCCL_ERR_DEVICE,      /* * the CUDA driver reported an error (ncclUnhandledCudaError) */
    HOCCL_ERR_BOOTSTRAP,   /* the launcher or the start-up exchange failed, or a rank did not come in time */
    HOCCL_ERR_MISMATCH,    /* * the two ends of a flow disagree: bytes, kind or order (MPI_ERR_TRUNCATE and more) */
    HOCCL_ERR_PEER,        /* * a peer process is gone or has reported an error (ncclRemoteError) */
    HOCCL_ERR_TIMEOUT,     /* * something that has started has not moved for HOCCL_TIMEOUT */
    HOCCL_ERR_INTERNAL,    /* a fault of HOCCL itself (ncclInternalError) */
} HOCCL_Result;

/* Element types. HOCCL moves bytes and never interprets them: a type only says how many bytes an element has. */
typedef enum {
    HOCCL_INT8 = 0, HOCCL_UINT8, HOCCL_INT16, HOCCL_UINT16, HOCCL_INT32, HOCCL_UINT32, HOCCL_INT64, HOCCL_UINT64,
    HOCCL_FP8_E4M3, HOCCL_FP8_E5M2, HOCCL_FP16, HOCCL_BF16, HOCCL_FP32, HOCCL_FP64, HOCCL_COMPLEX64, HOCCL_COMPLEX128,
    HOCCL_BYTE,
} HOCCL_Datatype;

/* ---- Start and end ------------------------------------------------------------------------------------------- */

/* Join the job: under mpirun or srun --mpi=pmix every rank calls it, without a launcher the world is this process.
 * The rank's GPU is that of the calling thread's current context; without one, the primary context of device
 * (local rank mod devices), which is made current and stays to the process's end. Waits for the other ranks, at most
 * HOCCL_INIT_TIMEOUT seconds (300), and says so every 30 s. Best called before CUDA: then it sets CUDA_DEVICE_MAX_CONNECTIONS=32 and
 * CUDA_MODULE_LOADING=EAGER where they are unset (doc/tuning.md). Counterpart: MPI_Init, ncclCommInitRank.
 * Errors: BOOTSTRAP (a launcher without PMIx, a rank is missing), DEVICE (no driver, no GPU), USAGE (called twice). */
HOCCL_API HOCCL_Result HOCCL_Init(void);

/* Leave the job: waits until this rank's operations have completed or failed, then frees everything HOCCL holds.
 * An operation whose peer has finalised without posting its side is an error; one whose peer may still post waits.
 * Counterpart: MPI_Finalize. Errors: USAGE (not initialised; an open group; another thread in a call of
 * HOCCL_COMM_WORLD: the library stays open, call again); a sticky error is returned after everything
 * has been freed. */
HOCCL_API HOCCL_Result HOCCL_Finalize(void);

/* ---- Making communicators without a launcher, and from others ------------------------------------------------------ */

/* Names a communicator to be: made by one rank, given to all by any means (a file, MPI_Bcast, a store). */
typedef struct {
    char internal[128];
} HOCCL_UniqueId;

/* Make an id; this process then listens for the ranks until they have come. Counterpart: ncclGetUniqueId.
 * Errors: ARGUMENT (NULL), SYSTEM (no socket). */
HOCCL_API HOCCL_Result HOCCL_GetUniqueId(HOCCL_UniqueId *id);

/* Make a communicator of nranks ranks, this thread being rank `rank`: of several processes, or threads of one, each with
 * its GPU's context current (without one: device rank mod count). Needs no HOCCL_Init. Waits for all ranks, at most
 * HOCCL_INIT_TIMEOUT. Inside a group the communicators are made together at the outermost End, so one thread can make
 * those of several GPUs. Counterpart: ncclCommInitRank.
 * Errors: ARGUMENT (NULL, nranks < 1, rank not in 0 … nranks − 1, an id that was not made by HOCCL_GetUniqueId);
 * BOOTSTRAP (a rank is missing, came twice or failed; every rank returns an error). */
HOCCL_API HOCCL_Result HOCCL_CommInitRank(HOCCL_Comm *comm, int nranks, HOCCL_UniqueId id, int rank);

/* Give as the color of HOCCL_CommSplit to get no communicator (HOCCL_COMM_NULL). */
#define HOCCL_SPLIT_NOCOLOR (-1)

/* Collective over comm: ranks of equal color (≥ 0) make a new communicator, ordered by key, then by rank. Waits for
 * all ranks of comm, at most HOCCL_INIT_TIMEOUT; operations of comm go on meanwhile. Inside a group at its End, as
 * HOCCL_CommInitRank, several of one comm in the order of the calls. Counterparts: MPI_Comm_split, ncclCommSplit.
 * Errors: ARGUMENT (NULL, color < −1), BOOTSTRAP (a rank did not come in time, has left, or gave a wrong argument). */
HOCCL_API HOCCL_Result HOCCL_CommSplit(HOCCL_Comm comm, int color, int key, HOCCL_Comm *newcomm);

/* Wait until this rank's operations in comm have completed or failed. Afterwards only HOCCL_CommDestroy, HOCCL_CommAbort
 * and the queries may be called with it. Counterpart: ncclCommFinalize. Errors: the sticky error. */
HOCCL_API HOCCL_Result HOCCL_CommFinalize(HOCCL_Comm comm);

/* The same if it has not been done, then free the communicator; the handle is invalid afterwards. Not for
 * HOCCL_COMM_WORLD, which HOCCL_Finalize frees. Counterparts: ncclCommDestroy, MPI_Comm_free. */
HOCCL_API HOCCL_Result HOCCL_CommDestroy(HOCCL_Comm comm);

/* ---- A communicator ------------------------------------------------------------------------------------------- */

/* Number of ranks; this process's rank, 0 … size − 1; the CUDA ordinal of the GPU it is bound to.
 * Errors: ARGUMENT (NULL result, no such communicator). Counterparts: ncclCommCount, ncclCommUserRank, ncclCommCuDevice. */
HOCCL_API HOCCL_Result HOCCL_CommSize(HOCCL_Comm comm, int *size);
HOCCL_API HOCCL_Result HOCCL_CommRank(HOCCL_Comm comm, int *rank);
HOCCL_API HOCCL_Result HOCCL_CommDevice(HOCCL_Comm comm, int *device);

/* The sticky error of the communicator, HOCCL_SUCCESS if none. Never blocks; from any thread at any time.
 * Counterpart: ncclCommGetAsyncError. */
HOCCL_API HOCCL_Result HOCCL_CommGetAsyncError(HOCCL_Comm comm, HOCCL_Result *error);

/* Give the communicator up: releases every stream that waits in it, stops its peers' operations with this rank, and
 * frees it. Bounded (2 s), with anything pending. From any thread. Afterwards the handle is invalid; only then do the
 * buffers of failed operations belong to the caller again. Counterpart: ncclCommAbort, MPIX_Comm_revoke.
 * Errors: ARGUMENT (no such communicator). */
HOCCL_API HOCCL_Result HOCCL_CommAbort(HOCCL_Comm comm);

/* ---- Point to point ------------------------------------------------------------------------------------------- */

/* Enqueue on stream: send count elements at buf to rank peer. Completes on the stream when buf may be overwritten.
 * Unless HOCCL_BLOCKING is on, the call waits for nobody; like any CUDA enqueue it blocks only while the stream's queue is full, and while as many
 * streams of the process wait in operations as the GPU can hold (doc/tuning.md; at most HOCCL_TIMEOUT, then USAGE). With fewer
 * than 32 hardware channels and one GPU in sight it may wait until the operation in front of it on the stream has completed (same place).
 * buf: memory of the communicator's GPU, at any offset, of any kind (cuMemAlloc, cuMemCreate, cuMemAllocAsync), or pinned
 * host memory. Fastest is what another process can open: cuMemAlloc, and cuMemCreate with a descriptor type.
 * count 0 is legal (buf may be NULL): it matches a receive of 0. Operations between a pair of ranks match in posting order; outside a group an operation is a group of
 * one, so two ranks that send to one another first wait for ever, as with ncclSend: put both in a group. (Between nodes a send of up
 * to a few MiB may complete before the receive's stream is there, if the receive is posted, so such a program may seem to work.)
 * Errors at the call (nothing is posted): ARGUMENT (NULL buf with count > 0, peer not in 0 … size − 1, unknown type,
 * bytes over SIZE_MAX, a range that is not all such memory); USAGE (two threads in one communicator, too many streams
 * that wait); UNSUPPORTED (stream is capturing). Later errors are sticky. Source: paper §3.3, ncclSend, MPI_Isend. */
HOCCL_API HOCCL_Result HOCCL_Send(const void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm,
                                  HOCCL_Stream stream);

/* Enqueue on stream: receive count elements into buf from rank peer. Completes on the stream when the data is visible
 * to later work on it. The sender's bytes must be the same: a difference is a MISMATCH error at both ends that gives
 * both values, and nothing is written past count. Else as HOCCL_Send. Source: paper §3.3, ncclRecv, MPI_Irecv. */
HOCCL_API HOCCL_Result HOCCL_Recv(void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm,
                                  HOCCL_Stream stream);

/* Operations between Start and End are posted together at the outermost End, so no order inside a group can deadlock.
 * Groups nest. A group belongs to the calling thread. A group that spans streams starts when all of them have reached
 * it and releases them together. If a call inside the group failed, End posts nothing, returns that error, and the
 * next group works. A group can span 8 communicators and 31 streams, for no more streams of a process can wait at once.
 * Counterpart: ncclGroupStart, ncclGroupEnd. Errors: USAGE (End without Start; more than that). */
HOCCL_API HOCCL_Result HOCCL_GroupStart(void);
HOCCL_API HOCCL_Result HOCCL_GroupEnd(void);

/* ---- Collectives that only move data ------------------------------------------------------------------------------- */

/* All ranks call the same collective with matching arguments, in the same order. Each is one group of flows on one
 * stream and behaves as a Send and a Recv do: nothing waits, errors found later are sticky, a difference between ranks
 * is a MISMATCH on both ends, and an error at all who wait for these. Inside a group they join it. Counts and displacements are elements of datatype; buffers
 * are what HOCCL_Send takes. A flow of 0 elements still shakes hands. Reductions need SMs and do not
 * exist here. Errors at the call: as HOCCL_Send, and ARGUMENT for a root that is no rank, NULL arrays, and buffers that
 * overlap in another way than "in place" allows. */

/* Every rank's sendcount elements to every rank, in rank order: rank r's land at recvbuf + r × sendcount. Across nodes they
 * go to one rank of each other node, which passes on to the others there what has landed in its recvbuf.
 * In place: sendbuf == recvbuf + rank × sendcount. Counterparts: ncclAllGather, MPI_Allgather. */
HOCCL_API HOCCL_Result HOCCL_AllGather(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype,
                                       HOCCL_Comm comm, HOCCL_Stream stream);

/* The same with recvcounts[r] elements of rank r at displs[r]; sendcount must be recvcounts[rank].
 * In place: sendbuf == recvbuf + displs[rank]. Counterpart: MPI_Allgatherv. */
HOCCL_API HOCCL_Result HOCCL_AllGatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                        const size_t *displs, HOCCL_Datatype datatype, HOCCL_Comm comm,
                                        HOCCL_Stream stream);

/* count elements from every rank to every rank: those for rank r stand at sendbuf + r × count, those of rank r land at
 * recvbuf + r × count. sendbuf == recvbuf is refused (ARGUMENT). Counterparts: ncclAlltoAll, MPI_Alltoall. */
HOCCL_API HOCCL_Result HOCCL_Alltoall(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype,
                                      HOCCL_Comm comm, HOCCL_Stream stream);

/* The same with a count and a displacement for each rank and direction. Counterpart: MPI_Alltoallv. */
HOCCL_API HOCCL_Result HOCCL_Alltoallv(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls, void *recvbuf,
                                       const size_t *recvcounts, const size_t *rdispls, HOCCL_Datatype datatype,
                                       HOCCL_Comm comm, HOCCL_Stream stream);

/* count elements of root's sendbuf to every rank's recvbuf (root's too, unless it is sendbuf). sendbuf is read at root
 * only. A short message goes from root to all; a long one in pieces along trees of ranks, which pass on what has landed in
 * their recvbuf: it leaves each GPU about once and crosses to each other node once. So a rank may end before another has
 * all, and a rank that comes late holds up those behind it. Counterparts: ncclBroadcast, MPI_Bcast (in place everywhere). */
HOCCL_API HOCCL_Result HOCCL_Broadcast(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, int root,
                                       HOCCL_Comm comm, HOCCL_Stream stream);

/* sendcount elements of every rank to root, rank r's at recvbuf + r × sendcount (recvcounts[r] at displs[r]). recvbuf,
 * recvcounts and displs are read at root only. In place at root: sendbuf == where they land. Counterparts: MPI_Gather(v). */
HOCCL_API HOCCL_Result HOCCL_Gather(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype, int root,
                                    HOCCL_Comm comm, HOCCL_Stream stream);
HOCCL_API HOCCL_Result HOCCL_Gatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                     const size_t *displs, HOCCL_Datatype datatype, int root, HOCCL_Comm comm,
                                     HOCCL_Stream stream);

/* recvcount elements from root to every rank, rank r's from sendbuf + r × recvcount (sendcounts[r] at displs[r]).
 * sendbuf, sendcounts and displs are read at root only. In place at root: recvbuf == where its own stand.
 * Counterparts: MPI_Scatter(v). */
HOCCL_API HOCCL_Result HOCCL_Scatter(const void *sendbuf, void *recvbuf, size_t recvcount, HOCCL_Datatype datatype, int root,
                                     HOCCL_Comm comm, HOCCL_Stream stream);
HOCCL_API HOCCL_Result HOCCL_Scatterv(const void *sendbuf, const size_t *sendcounts, const size_t *displs, void *recvbuf,
                                      size_t recvcount, HOCCL_Datatype datatype, int root, HOCCL_Comm comm,
                                      HOCCL_Stream stream);

/* ---- Operations that are started many times -------------------------------------------------------------------------- */

/* Make a request of an operation with these arguments, for HOCCL_Start. It is checked as the call without _init is, and
 * nothing is posted. Arrays of counts and displacements are copied, so the caller's may go. The request keeps what the
 * driver has told of its buffers: they must not be freed before HOCCL_RequestFree. A rank makes its request when it
 * likes, and may start it where other ranks call the operation itself. Inside a group it is made at once.
 *
 * HOCCL_Alltoallv_init is collective, as in MPI: all ranks call it, in the same order as HOCCL_CommSplit and further calls
 * of it, and all start the request, none calling HOCCL_Alltoallv instead. It waits for the other ranks, at most
 * HOCCL_INIT_TIMEOUT (who has several ranks in one process calls it from a thread for each). They tell each other what they
 * send: counts that do not fit are an error at all ranks, which names the two ranks and both values. Where a plan for all of
 * them is faster by the model, starts follow it (HOCCL_DEBUG=info says so).
 *
 * Errors: as the call without _init, and ARGUMENT (request is NULL); HOCCL_Alltoallv_init also MISMATCH (a rank sends what
 * another one does not expect) and BOOTSTRAP (a rank has not come, has gone, or has failed: the text says which); the
 * communicator stays good. Counterparts: MPI_Send_init, MPI_Alltoallv_init and so on. */
HOCCL_API HOCCL_Result HOCCL_Send_init(const void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm,
                                       HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Recv_init(void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm,
                                       HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_AllGather_init(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype,
                                            HOCCL_Comm comm, HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_AllGatherv_init(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                             const size_t *displs, HOCCL_Datatype datatype, HOCCL_Comm comm,
                                             HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Alltoall_init(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype,
                                           HOCCL_Comm comm, HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Alltoallv_init(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                                            void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                                            HOCCL_Datatype datatype, HOCCL_Comm comm, HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Broadcast_init(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, int root,
                                            HOCCL_Comm comm, HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Gather_init(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype,
                                         int root, HOCCL_Comm comm, HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Gatherv_init(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                          const size_t *displs, HOCCL_Datatype datatype, int root, HOCCL_Comm comm,
                                          HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Scatter_init(const void *sendbuf, void *recvbuf, size_t recvcount, HOCCL_Datatype datatype,
                                          int root, HOCCL_Comm comm, HOCCL_Request *request);
HOCCL_API HOCCL_Result HOCCL_Scatterv_init(const void *sendbuf, const size_t *sendcounts, const size_t *displs, void *recvbuf,
                                           size_t recvcount, HOCCL_Datatype datatype, int root, HOCCL_Comm comm,
                                           HOCCL_Request *request);

/* Enqueue the request's operation on stream, as its call without _init would: same order, same errors later. The call
 * makes no plan and asks the driver only whether the buffers are still those of the request. It may be started again at
 * any time, also while it is under way, on the same stream or another: each start is an operation of its own, in the
 * order of starts. Inside a group it joins the group; several requests are started together by a group. Counterparts:
 * MPI_Start, MPI_Startall. Errors: ARGUMENT (no such request; its communicator is gone; a buffer has been
 * freed, or its address is another allocation's now: free the request and make a new one), and as HOCCL_Send. */
HOCCL_API HOCCL_Result HOCCL_Start(HOCCL_Request request, HOCCL_Stream stream);

/* Free a request, also after its communicator is gone. What it has started goes on, and uses the buffers until it has
 * completed. Counterpart: MPI_Request_free. Errors: ARGUMENT (no such request), USAGE (another thread is starting it). */
HOCCL_API HOCCL_Result HOCCL_RequestFree(HOCCL_Request request);

/* ---- What comes first ------------------------------------------------------------------------------------------------ */

/* Between the two, in the order of stream, the operations of communicator `background` give way to what the stream does:
 * from the moment the stream reaches Begin, this rank gives the engines no further chunk of theirs until it reaches End.
 * What an engine has already still lands (at most 0.45 ms on an H200). Each call enqueues one write and waits for nobody.
 * Other communicators are not concerned (but behind gates of H2D copies: there a message of theirs to the rank itself can wait
 * for the slots of a large one that is held up), nor is what is posted to `background` on that stream between the two calls: it
 * is part of the phase. Phases nest, and up to 16 streams may be in one: the communicator goes on when none is. Other
 * ranks are not told: an operation goes on while neither end holds it up. A phase holds for at most HOCCL_PAUSE ms (1000),
 * and a quarter of HOCCL_TIMEOUT; then operations go on. So a phase that waits for such an operation, here or at another
 * rank, is slow and not stuck. HOCCL_Finalize, HOCCL_CommFinalize and HOCCL_CommDestroy end the phases of their
 * communicator. From any thread; not collective. Source: paper §5. Errors: ARGUMENT (no such communicator), USAGE (End
 * without Begin; too many streams), UNSUPPORTED (stream is capturing). */
HOCCL_API HOCCL_Result HOCCL_ForegroundBegin(HOCCL_Comm background, HOCCL_Stream stream);
HOCCL_API HOCCL_Result HOCCL_ForegroundEnd(HOCCL_Comm background, HOCCL_Stream stream);

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

/* At least `bytes` of memory of the GPU of the calling thread's current context (without one: of device 0, whose primary
 * context is made current), which every other process can open and a NIC can reach, where GPU and driver allow: so the
 * best that a buffer of HOCCL_Send can be. Rounded up to the driver's granularity (2 MiB). The other GPUs that this process
 * sees may access it too, where they can reach it. Registered with the network at first use (see HOCCL_CommRegister). 0 bytes: *ptr is NULL. The content is undefined. Needs no HOCCL_Init.
 * Counterparts: ncclMemAlloc, MPI_Alloc_mem. Errors: ARGUMENT (NULL), MEMORY (the GPU has not so much), DEVICE. */
HOCCL_API HOCCL_Result HOCCL_MemAlloc(void **ptr, size_t bytes);

/* Free what HOCCL_MemAlloc gave, from any thread; NULL is nothing. It waits for nothing, unlike cuMemFree: no operation and
 * no work on a stream may still use the memory. Counterparts: ncclMemFree, MPI_Free_mem.
 * Errors: ARGUMENT (not the address of memory of HOCCL_MemAlloc), DEVICE. */
HOCCL_API HOCCL_Result HOCCL_MemFree(void *ptr);

/* Let the network read and write these bytes itself: operations of any communicator of this GPU whose buffer lies in them, and
 * whose peer is on another node, then go without staging at this end. Each rank may do it or not, for any of its buffers; ranks
 * need not agree. A request of an _init call goes by what was registered when it was made. The buffer is what HOCCL_Send takes; the whole allocations are registered that it lies in (of memory that was
 * mapped piece by piece, its segments). It concerns this rank alone, waits for no other, and takes as long as the NIC's driver
 * does; from any thread at any time, and at once also in a group.
 * *handle is for HOCCL_CommDeregister and is never NULL; a buffer may be registered several times. Memory that cannot be
 * registered (GPU memory over TCP, a limit of locked memory) is no error: it is staged as before, and a line of HOCCL_DEBUG=info says
 * why, and what to do. Memory of HOCCL_MemAlloc needs no such call: it is registered when it is first used with another node.
 * Memory that is freed while it is registered is noticed, and what is allocated at its address later counts as not registered.
 * Counterpart: ncclCommRegister. Errors: ARGUMENT (NULL, 0 bytes, no such communicator, memory that HOCCL_Send refuses), MEMORY; the
 * sticky error. */
HOCCL_API HOCCL_Result HOCCL_CommRegister(HOCCL_Comm comm, void *buffer, size_t bytes, void **handle);

/* Take a registration back; NULL is nothing. It may be called with operations on the buffer outstanding and does not wait for them:
 * those under way end as they began, and the last one withdraws the memory from the network. So wait for the operations before the
 * buffer is freed, as ever. Handles that are left are given back with the communicator. Counterpart: ncclCommDeregister.
 * Errors: ARGUMENT (no such communicator; no registration of it, or taken back already). */
HOCCL_API HOCCL_Result HOCCL_CommDeregister(HOCCL_Comm comm, void *handle);

/* ---- Errors and version ---------------------------------------------------------------------------------------- */

/* A short fixed text for a result. Never NULL. */
HOCCL_API const char *HOCCL_GetErrorString(HOCCL_Result result);

/* The detailed text of the last error that a call of this thread returned: what, who, and what to do. Valid until the
 * thread's next failing call; never NULL, "" if there was none. */
HOCCL_API const char *HOCCL_GetLastError(void);

/* 10000 × major + 100 × minor + patch. Errors: ARGUMENT (NULL). */
HOCCL_API HOCCL_Result HOCCL_GetVersion(int *version);

#ifdef __cplusplus
}
#endif
#endif
