/* SPDX-License-Identifier: Apache-2.0 */
/* How large a chunk an engine is given, and how far ahead of the one it works on. Pure: no thread, no clock of its own.
 *
 * A copy costs the engine 2 to 3.5 µs beside its bytes, wherever its neighbours come from, so rate wants large chunks:
 * 128 MiB reach 0.99 of the raw rate, 32 MiB 0.96, 16 MiB 0.92, 4 MiB 0.82 (H200). But whoever comes while a chunk is with
 * the driver waits for it to end. So, in bytes that the engine moves in 100 µs (B, from its measured rate, at most 32 MiB):
 *
 *   several parties      chunks of B/8 (4 MiB there, at least 1), two of them ahead: a newcomer waits for two
 *   one, in company      another one had to wait for it within the last second, or a small one has met another since:
 *                        chunks grow from B/32 to B/2 and two are
 *                        ahead, so that the next one that comes waits at most 100 µs; but the second one is submitted only just
 *                        before the first should land, for each submission takes as long as such a chunk
 *   one, undisturbed     chunks of HOCCL_CHUNK; the next is given when the present one ends in 100 µs or less
 *
 * Small copies may be ahead up to 16, so that their costs overlap, as long as their bytes keep within two chunks. */
#ifndef HOCCL_P2P_PACE_H
#define HOCCL_P2P_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct hoccl_pace {
    uint64_t most;       /* HOCCL_CHUNK */
    unsigned percent;    /* HOCCL_SHARE: of the engine's time that may be ours; 100: all */
    uint64_t ns_a_mib;   /* measured; 0: not yet */
    uint64_t alone;      /* measured: what a copy alone takes beside its bytes, from its giving until it is seen, ns; 0: not yet */
    uint64_t company_at; /* when somebody last had to wait for a longer transfer than its own, ns; 0: never */
    uint64_t sample_bytes, sample_ns; /* landed one behind the other since the rate was last measured */
    unsigned steps;      /* one, in company: chunks given since the engine was last empty or had several parties */
    uint64_t rest_until; /* percent below 100: nothing is given before that, ns */
};

/* What the engine has, as far as the pace depends on it. */
struct hoccl_load {
    bool several;        /* more than one party has bytes to be given */
    uint32_t chunks;     /* with the driver */
    uint64_t bytes;      /* of them */
    uint64_t since;      /* when the engine began with the oldest of them, ns */
    uint64_t now;
};

void hoccl_pace_init(struct hoccl_pace *pace, uint64_t most, unsigned percent);

/* Somebody had to wait for a longer transfer of late, and may again. */
bool hoccl_pace_company(const struct hoccl_pace *pace, uint64_t now);

/* The most bytes of the next chunk. */
uint64_t hoccl_pace_chunk(const struct hoccl_pace *pace, const struct hoccl_load *load);

/* May a chunk of so many bytes be given now? */
bool hoccl_pace_room(const struct hoccl_pace *pace, const struct hoccl_load *load, uint64_t bytes);

/* A transfer of `bytes` has come; `ahead` bytes of others are with the driver. */
void hoccl_pace_newcomer(struct hoccl_pace *pace, uint64_t bytes, uint64_t ahead, uint64_t now);

/* A chunk has been given. */
void hoccl_pace_given(struct hoccl_pace *pace, const struct hoccl_load *load);

/* So many bytes have landed in `ns`, all of which the engine was busy; `first`: it had nothing before them, so what it takes to
 * submit a copy is in the time. */
void hoccl_pace_landed(struct hoccl_pace *pace, uint64_t bytes, uint64_t ns, uint64_t now, bool first);

/* A copy of `bytes` that was alone with the engine has landed after `ns`. How long will one take? 0: one does not know. */
void hoccl_pace_alone(struct hoccl_pace *pace, uint64_t bytes, uint64_t ns);
uint64_t hoccl_pace_takes(const struct hoccl_pace *pace, uint64_t bytes);

#endif
