/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests with several processes share: one stream, one buffer each way, an exchange that checks every byte and the
 * guards around them, expected errors, and signals between the ranks that need no communicator. */
#ifndef MULTI_KIT_H
#define MULTI_KIT_H

#include "../../examples/common.h"

#define GUARD 64
#define GUARD_BYTE 0xa5

extern struct job job;

/* Join the job under an alarm of so many seconds: a hang is a failure with the name of what hung. */
void kit_open(unsigned seconds, const char *what);
void kit_close(void);

CUstream kit_stream(void);
CUdeviceptr kit_memory(size_t bytes);
static inline void *kit_pointer(CUdeviceptr p)
{
    return (void *)(uintptr_t)p;
}

/* Device memory with a guard on each side; `kit_guards` fails if any of their bytes has changed. */
CUdeviceptr kit_guarded(size_t bytes);
void kit_guards(CUdeviceptr p, size_t bytes, const char *what);

/* Every byte of the message, which lies in device memory. */
void kit_verify(CUdeviceptr p, size_t bytes, struct message message, const char *what);

/* The stream has come to its end and the communicator has no error. */
void kit_sync(CUstream stream, const char *what);
HOCCL_Result kit_async_error(void);

/* Every rank sends its right neighbour a message and checks the one of its left: the communicator is good. */
void kit_exchange(const char *what);

/* The call must return `want`, and its text must hold `words`. */
void kit_expect(HOCCL_Result got, HOCCL_Result want, const char *words, const char *what);

/* kit_tell leaves a mark that every rank's kit_hear sees: files in $TMPDIR, which is the test's own. */
void kit_tell(const char *mark);
void kit_hear(const char *mark);
bool kit_heard(const char *mark);

/* Every rank has come to this mark. */
void kit_meet(const char *mark);

/* Plain sends and receives of bytes in the world. */
HOCCL_Result kit_send(CUdeviceptr p, size_t bytes, int peer, CUstream stream);
HOCCL_Result kit_recv(CUdeviceptr p, size_t bytes, int peer, CUstream stream);

#endif
