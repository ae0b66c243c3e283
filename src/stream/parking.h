/* SPDX-License-Identifier: Apache-2.0 */
/* The streams of this process that wait inside HOCCL operations ("parked").
 *
 * Two rules of the driver (measured) hang on their number: beyond 33 … 48 of them the driver hangs, so the 32nd has to
 * wait for one to be released; and calls such as cuIpcCloseMemHandle and cuMemHostUnregister wait for parked streams
 * while they hold a lock, so they are made only while there is none, nor an engine that is dead. */
#ifndef HOCCL_STREAM_PARKING_H
#define HOCCL_STREAM_PARKING_H

#include "hoccl.h"

#include <stdbool.h>
#include <stdint.h>

#define HOCCL_PARKED_MAX 31

/* `n` more streams are about to be parked; *parked says how many there are then. Waits while there would be more than
 * HOCCL_PARKED_MAX, at most `timeout` ns, then USAGE; or until give_up(arg), which must not block, returns an error (NULL:
 * never). */
HOCCL_Result hoccl_parking_enter(int n, uint64_t timeout, HOCCL_Result (*give_up)(void *arg), void *arg, int *parked);

/* Those who wait for room ask their give_up again. */
void hoccl_parking_stir(void);

/* `n` engines are dead: what they have counts as parked, for such calls wait for that too. False, and nothing has been counted:
 * another thread is in here, perhaps in such a call; try again. */
bool hoccl_parking_count(int n);

/* `n` streams have been released, or engines have moved again. Never blocks for long. */
void hoccl_parking_leave(int n);

/* Call f(arg) if nothing is parked, holding new parks off meanwhile; false if something is. Never waits for a stream. */
bool hoccl_parking_quiet(void (*f)(void *arg), void *arg);

#endif
