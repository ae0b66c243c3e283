/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange over TCP of the ranks that share a unique id: what is said, who says it.
 *
 *   rank                                          the process that made the id (a thread: root.c)
 *   connects to its addresses in turn
 *   ── hello{secret, rank, size, bytes}, blob ──▶ a stranger (wrong or no secret) is closed
 *   ◀── WELCOME{proof} ──────────────────────────  at once, so that the rank knows whom it has found
 *   ◀── WAITING{text} ───────────────────────────  every 30 s: who is missing
 *   ◀── ALL{size × blob} ────────────────────────  when everyone has come
 *   ◀── FAILED{text} ────────────────────────────  or why it does not come to that
 *
 * All numbers are in the host's order: ranks of different orders cannot share a GPU's data anyway. */
#ifndef HOCCL_BOOT_TCP_H
#define HOCCL_BOOT_TCP_H

#include "boot/boot.h"
#include "boot/id.h"

#define HOCCL_TCP_VERSION 1u
#define HOCCL_TCP_MAGIC 0x4c434f48u /* "HOCL" */

struct hoccl_tcp_hello {
    uint32_t magic;
    uint32_t version;
    uint8_t secret[16];
    int32_t rank, size;
    uint32_t bytes; /* of the blob that follows */
};

enum hoccl_tcp_kind { HOCCL_TCP_WELCOME = 1, HOCCL_TCP_WAITING, HOCCL_TCP_FAILED, HOCCL_TCP_ALL };

struct hoccl_tcp_frame {
    uint32_t magic;
    uint32_t kind;  /* enum hoccl_tcp_kind */
    uint64_t bytes; /* that follow; WELCOME: the proof, WAITING and FAILED: a text without an end mark */
};

#define HOCCL_TCP_TEXT 400

/* Make an id and start the thread that serves it: one exchange; it waits at most `timeout` ns for a first rank and from
 * then on as long for the others. Nothing remains of it afterwards. Errors: SYSTEM. */
HOCCL_Result hoccl_root_open(uint64_t timeout, HOCCL_UniqueId *out);

/* A rank of it. ARGUMENT if the id was not made by hoccl_root_open. */
HOCCL_Result hoccl_boot_tcp_open(const HOCCL_UniqueId *id, int rank, int size, struct hoccl_boot *boot);

#endif
