/* SPDX-License-Identifier: Apache-2.0 */
/* See pace.h. */
#include "p2p/pace.h"

#include "base/clock.h"
#include "sched/chunks.h"

#define MIB ((uint64_t)1 << 20)
#define NEWCOMER (100 * HOCCL_US)     /* the longest that a newcomer should wait for what is with the driver */
#define BYTES_MOST (32 * MIB)         /* of NEWCOMER: also while the rate is not known */
#define COMPANY HOCCL_S               /* for so long a lone transfer expects others */
#define WINDOW_QUIET (16 * MIB)       /* undisturbed: beyond two chunks, only so much is ahead */
#define SAMPLE (4 * MIB)              /* fewer bytes say nothing of the rate */
#define LONE_CHUNKS 2u
#define SUBMISSION (6 * HOCCL_US)     /* of a copy and its flag, so that the engine is not idle in between */
#define ALONE_MOST (16 * MIB)         /* of more bytes the rate's error is larger than what is looked for */
#define NS_A_MIB 2700                 /* while no rate is known: that of a push */

void hoccl_pace_init(struct hoccl_pace *pace, uint64_t most, unsigned percent)
{
    *pace = (struct hoccl_pace){.most = most, .percent = percent};
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What the engine moves in NEWCOMER. */
static uint64_t in_time(const struct hoccl_pace *p)
{
    return p->ns_a_mib ? smaller(NEWCOMER * MIB / p->ns_a_mib, BYTES_MOST) : BYTES_MOST;
}

static uint64_t whole(uint64_t bytes)
{
    return bytes < MIB ? MIB : bytes / MIB * MIB;
}

bool hoccl_pace_company(const struct hoccl_pace *pace, uint64_t now)
{
    return pace->company_at && now < pace->company_at + COMPANY;
}

/* 1, 2, 2, 4, 4, 8, 8, 16, 16, … MiB where 32 are moved in time: who comes together with the first waits for little. */
static uint64_t grown(const struct hoccl_pace *p, const struct hoccl_load *load)
{
    uint64_t shift = load->chunks ? (p->steps + 1) / 2 : 0;
    return whole(in_time(p) / 2 >> (shift < 4 ? 4 - shift : 0));
}

uint64_t hoccl_pace_chunk(const struct hoccl_pace *pace, const struct hoccl_load *load)
{
    uint64_t bytes = pace->most;
    if (load->several)
        bytes = whole(in_time(pace) / 8);
    else if (hoccl_pace_company(pace, load->now))
        bytes = grown(pace, load);
    else if (pace->percent < 100)
        bytes = whole(in_time(pace) / 2);
    return smaller(bytes, pace->most);
}

/* The oldest ends in NEWCOMER or less, as far as one knows. */
static bool ends_soon(const struct hoccl_pace *p, const struct hoccl_load *l)
{
    uint64_t takes = l->bytes / MIB * p->ns_a_mib;
    return l->now + NEWCOMER >= l->since + takes;
}

/* One in company has begun, and its second chunk need not be submitted yet. Who comes together with it is in front of that then. */
static bool begins(const struct hoccl_pace *p, const struct hoccl_load *l)
{
    uint64_t takes = hoccl_pace_takes(p, l->bytes);
    return takes && !l->several && l->chunks == 1 && p->steps == 1 && hoccl_pace_company(p, l->now) && l->now + SUBMISSION < l->since + takes;
}

bool hoccl_pace_room(const struct hoccl_pace *pace, const struct hoccl_load *load, uint64_t bytes)
{
    if (pace->percent < 100)
        return !load->chunks && load->now >= pace->rest_until;
    if (begins(pace, load))
        return false;
    if (load->chunks < LONE_CHUNKS)
        return !load->chunks || ends_soon(pace, load);
    if (load->several || hoccl_pace_company(pace, load->now))
        return load->bytes + bytes <= 2 * smaller(whole(in_time(pace) / 8), pace->most);
    return load->bytes + bytes <= WINDOW_QUIET;
}

void hoccl_pace_newcomer(struct hoccl_pace *pace, uint64_t bytes, uint64_t ahead, uint64_t now)
{
    bool again = ahead && bytes <= in_time(pace) / 2 && hoccl_pace_company(pace, now); /* as now it waits for little */
    if (ahead > bytes || again)
        pace->company_at = now;
}

void hoccl_pace_given(struct hoccl_pace *pace, const struct hoccl_load *load)
{
    pace->steps = load->several ? 0 : load->chunks ? pace->steps + 1 : 1;
}

/* What had to wait for a copy of the application, or for the driver, looks slow; what landed just behind one that was seen late
 * looks fast. So a sample counts by half where it is faster, by an eighth where it is slower, and then as twice the rate at most. */
static void measure(struct hoccl_pace *p, uint64_t bytes, uint64_t ns)
{
    uint64_t seen = ns / (bytes / MIB);
    seen = seen ? seen : 1;
    if (!p->ns_a_mib)
        p->ns_a_mib = seen;
    else if (seen < p->ns_a_mib)
        p->ns_a_mib -= (p->ns_a_mib - seen + 1) / 2;
    else
        p->ns_a_mib += (smaller(seen - p->ns_a_mib, p->ns_a_mib) + 7) / 8;
}

/* Several small ones make a sample too: where the rate is taken for lower than it is, chunks are small, and no others come. One that
 * came to an empty engine took longer than its bytes, so it counts only if even so it is faster than what is taken for the rate. */
static void sample(struct hoccl_pace *p, uint64_t bytes, uint64_t ns, bool first)
{
    bool counts = !first || bytes >= SAMPLE || ns * MIB < bytes * p->ns_a_mib;
    p->sample_bytes = counts ? p->sample_bytes + bytes : 0;
    p->sample_ns = counts ? p->sample_ns + ns : 0;
    if (p->sample_bytes < SAMPLE)
        return;
    measure(p, p->sample_bytes, p->sample_ns);
    p->sample_bytes = p->sample_ns = 0;
}

void hoccl_pace_landed(struct hoccl_pace *pace, uint64_t bytes, uint64_t ns, uint64_t now, bool first)
{
    sample(pace, bytes, ns, first);
    uint64_t own = bytes >= SAMPLE ? bytes / MIB * pace->ns_a_mib : ns;
    pace->rest_until = now + hoccl_chunks_rest(smaller(own, ns), pace->percent);
}

static uint64_t moves(const struct hoccl_pace *p, uint64_t bytes)
{
    return bytes * (p->ns_a_mib ? p->ns_a_mib : NS_A_MIB) / MIB;
}

/* One that took much longer had to wait for something. */
void hoccl_pace_alone(struct hoccl_pace *pace, uint64_t bytes, uint64_t ns)
{
    uint64_t moved = moves(pace, bytes), beside = ns > moved ? ns - moved : 1;
    if (bytes > ALONE_MOST)
        return;
    if (!pace->alone)
        pace->alone = beside;
    else if (beside < pace->alone)
        pace->alone -= (pace->alone - beside) / 4;
    else
        pace->alone += smaller(beside - pace->alone, pace->alone) / 8;
}

uint64_t hoccl_pace_takes(const struct hoccl_pace *pace, uint64_t bytes)
{
    return pace->alone && bytes <= ALONE_MOST ? pace->alone + moves(pace, bytes) : 0;
}
