/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps a parked wait out of the way of kernels when hardware channels are few.
 *
 * The driver puts an operation without a class of its own (a wait, a write) into the channel of the operation in front
 * of it in its stream. A bare wait sits in a compute channel, and once as many streams wait as there are channels
 * (CUDA_DEVICE_MAX_CONNECTIONS) no kernel runs. A small copy in front (the gate) moves the wait into that copy's class.
 * Beside a gate kernels and every other class of copy run; copies of its own class do not while a stream waits, neither
 * ours nor the application's. In a process with one GPU's context pushes and pulls are one class (measured:
 * test/gpu/gates.c). So:
 *
 *   H2D   the normal one: flows are pushed and pulled; what must be staged through host memory stands still while gated
 *         streams wait (an error after HOCCL_TIMEOUT that names the ways out)
 *   PUSH  by HOCCL_GATE=push, or with ranks on other nodes: everything is staged through host memory, slower
 *   COMPUTE  where the process sees no other GPU: compute, D2H and H2D are all the classes there are, and flows need the copies. Kernels
 *         stand still while as many streams wait as there are channels, but no operation stops another one
 *   none  with 32 channels, which no 31 parked streams can fill
 *
 * The start signal must not stand behind another stream's wait, so it is of another class than the gate, and what it is of holds a
 * channel of that class while the turn is queued behind another one, on its stream or by an event:
 *
 *   H2D   D2H: nothing else of ours needs it, and it passes the kernels that the program has enqueued
 *   PUSH  compute, for slots need D2H. So turns and kernels start in the order in which they were enqueued, as NCCL's do
 *   COMPUTE  D2H. A turn behind another one would stop the slots' copies: fewer streams than there are channels have such turns,
 *         and who would post on one more waits */
#ifndef HOCCL_STREAM_GATE_H
#define HOCCL_STREAM_GATE_H

#include "base/setting.h"
#include "stream/flag.h"

#include <stdbool.h>

struct hoccl_gate {
    struct hoccl_device_memory memory; /* 65,536 words, word i holds i; behind them a scratch line */
    struct hoccl_device_memory target; /* PUSH: on another GPU, without a context there */
    struct hoccl_flag source;          /* copies from host memory read here */
    int channels;                      /* CUDA_DEVICE_MAX_CONNECTIONS as the driver saw it */
    enum hoccl_gate_choice kind;       /* NONE, PUSH, H2D, COMPUTE */
    bool always;                       /* asked for by HOCCL_GATE: from the first parked stream on */
    uint32_t gated;                    /* gated turns that are out: enqueued, not released */
    uint32_t passing;                  /* H2D copies that are out and would not end behind a gate */
    uint32_t queued;                   /* COMPUTE: streams with gated turns that were enqueued behind another one */
};

/* By kind, as HOCCL_GATE writes it. */
extern const char *const hoccl_gate_names[];

/* Which gate a GPU gets: `other` is an ordinal of a GPU that its engines reach, or −1. */
enum hoccl_gate_choice hoccl_gate_kind(int channels, int other);

/* Hardware channels of a class: CUDA_DEVICE_MAX_CONNECTIONS as the driver reads it. */
int hoccl_gate_channels(void);

/* The context must be current. */
HOCCL_Result hoccl_gate_open(struct hoccl_gate *gate, const struct hoccl_device *device, int other,
                             struct hoccl_flag_pool *flags);
void hoccl_gate_close(struct hoccl_gate *gate, struct hoccl_flag_pool *flags);

/* Ranks on other nodes are reached through host memory, by D2H and H2D copies. An H2D gate would stop those: a gate of
 * the library's own choice becomes a push gate while nobody can have used it (not `settled`); else UNSUPPORTED with the
 * ways out. */
HOCCL_Result hoccl_gate_suit_wire(struct hoccl_gate *gate, const struct hoccl_device *device, int other, bool settled);

/* Gated turns and H2D copies that are not to stand behind gates keep off each other: whoever counts itself first is first.
 * Calling thread, before it enqueues a gated turn: count it; wait (microseconds, at most 50 ms) for such copies to land, if the gate is theirs.
 * Progress thread: a gated turn has been released. */
void hoccl_gate_bar(struct hoccl_gate *gate);
void hoccl_gate_unbar(struct hoccl_gate *gate);

/* May one more stream have gated turns behind others? Then it is counted, until the last of them is released. */
bool hoccl_gate_queue(struct hoccl_gate *gate);
void hoccl_gate_unqueue(struct hoccl_gate *gate);

/* Progress thread: are gated turns out? Count a copy, if none is; n copies have landed. */
bool hoccl_gate_barred(const struct hoccl_gate *gate);
bool hoccl_gate_pass(struct hoccl_gate *gate);
void hoccl_gate_land(struct hoccl_gate *gate, uint32_t n);

/* Does a wait need the gate when `parked` streams of the process wait, this one included? */
bool hoccl_gate_needed(const struct hoccl_gate *gate, int parked);

/* Pushes and pulls may be stopped by our own gates: stage through host memory. */
bool hoccl_gate_bars_push(const struct hoccl_gate *gate);

/* 64 bytes of the GPU's memory that nobody reads. */
CUdeviceptr hoccl_gate_scratch(const struct hoccl_gate *gate);

/* Enqueue the gate copy. */
HOCCL_Result hoccl_gate_enqueue(const struct hoccl_gate *gate, CUstream stream);

/* Let the stream write `value`'s low 16 bits into `flag` (as a 32-bit word). */
HOCCL_Result hoccl_gate_signal(const struct hoccl_gate *gate, CUstream stream, const struct hoccl_flag *flag, uint32_t value);

#endif
