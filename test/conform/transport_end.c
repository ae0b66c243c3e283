/* SPDX-License-Identifier: Apache-2.0 */
/* How connections end, what is left of them, and sleeping on the bell. */
#include "transport_cases.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"

#include <pthread.h>
#include <sys/mman.h>

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* What was given before the close arrives, if the connection was idle; CLOSED is the last event. */
void case_close_idle(void)
{
    for (int round = 0; round < 20; round++) {
        static struct line a, b;
        struct buffer f, t;
        both_open();
        pair_open(&a, &x, &b, &y, 1);
        buffer_open(&f, &x, 4 * MIB, 0, 1);
        buffer_open(&t, &y, 4 * MIB, 0, 2);
        pattern_fill(f.bytes, f.size, 7);
        for (uint32_t i = 0; i < 8; i++)
            give_write(&a, &y, &f, i * MIB / 2, t.region.key, i * MIB / 2, MIB / 2, i);
        for (int i = 0; i < 10; i++)
            give_message(&a, &y, &i, sizeof i);
        UNTIL(&x, &y, transport->idle(a.connection));
        line_close(&a);
        buffer_close(&f);
        UNTIL(&x, &y, b.closed || b.broken);
        CHECK(b.closed, "%s", b.text);
        CHECK(b.arrived == 8 && b.messages == 10, "%u writes and %u messages", b.arrived, b.messages);
        CHECK(pattern_holds(t.bytes, t.size, 7), "bytes differ");
        CHECK(!transport->message(b.connection, "m", 1), "a message was taken after CLOSED");
        line_close(&b);
        buffer_close(&t);
        both_close();
    }
}

/* Closed with writes under way: the memory may be unmapped at once, at the end that closes, and at the other one as soon as
 * it has heard of it. */
void case_close_busy(void)
{
    for (int round = 0; round < 20; round++) {
        static struct line a, b;
        struct hoccl_region r[2];
        char *memory[2];
        both_open();
        pair_open(&a, &x, &b, &y, 1);
        for (int i = 0; i < 2; i++) {
            memory[i] = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(memory[i] != MAP_FAILED, "mmap");
            struct hoccl_region_source s = {.address = memory[i], .bytes = 32 * MIB, .dmabuf = -1};
            CHECK(!transport->region_add(i ? y.endpoint : x.endpoint, &s, &r[i]), "%s", hoccl_error_text());
        }
        struct hoccl_write w = {.from = &r[0], .to = r[1].key, .bytes = MIB};
        while (w.word < 32 && transport->write(a.connection, &w))
            w.to_offset = ++w.word * MIB;
        hoccl_sleep((uint64_t)round * 200 * HOCCL_US);
        if (round % 2) { /* the receiver closes */
            line_close(&b);
            transport->region_remove(y.endpoint, &r[1]);
            munmap(memory[1], 32 * MIB);
            UNTIL(&x, &y, a.broken || a.closed);
            line_close(&a);
            transport->region_remove(x.endpoint, &r[0]);
            munmap(memory[0], 32 * MIB);
        } else {
            line_close(&a);
            transport->region_remove(x.endpoint, &r[0]);
            munmap(memory[0], 32 * MIB);
            UNTIL(&x, &y, b.broken || b.closed);
            CHECK(b.broken || b.arrived == w.word, "closed in good order with %u of %u writes", b.arrived, w.word);
            transport->region_remove(y.endpoint, &r[1]);
            munmap(memory[1], 32 * MIB);
            line_close(&b);
        }
        both_close();
    }
}

void case_both_close(void)
{
    static struct line a, b;
    both_open();
    for (int i = 0; i < 50; i++) {
        pair_open(&a, &x, &b, &y, (uint64_t)i + 1);
        line_close(&a);
        line_close(&b);
    }
    both_close();
}

/* The address sanitizer keeps what was freed for a while. */
#ifdef __SANITIZE_ADDRESS__
#define SLACK (400 << 10)
#else
#define SLACK (8 << 10)
#endif

/* Nothing is left over. */
void case_cycles(void)
{
    static struct line a, b;
    int descriptors = 0, threads = 0;
    long memory = 0;
    both_open();
    for (int i = 0; i < 1000; i++) {
        pair_open(&a, &x, &b, &y, (uint64_t)i + 1);
        give_message(&a, &y, "m", 1);
        UNTIL(&x, &y, b.messages == 1);
        close_pair(&a, &b);
        if (i == 200) {
            descriptors = process_descriptors();
            threads = process_threads();
            memory = process_memory();
        }
    }
    hoccl_sleep(100 * HOCCL_MS); /* for the last goodbyes */
    printf("  descriptors %d then %d, threads %d then %d, memory %ld KiB then %ld\n", descriptors, process_descriptors(), threads,
           process_threads(), memory, process_memory());
    CHECK(process_descriptors() <= descriptors + 8, "descriptors grow");
    CHECK(process_threads() <= threads, "threads grow");
    CHECK(process_memory() < memory + SLACK, "memory grows");
    both_close();
    for (int i = 0; i < 50; i++) {
        both_open();
        pair_open(&a, &x, &b, &y, 1);
        line_close(&a);
        line_close(&b);
        both_close();
    }
    CHECK(process_descriptors() <= descriptors, "endpoints leave descriptors");
}

/* ---- sleeping ---------------------------------------------------------------------------------------------------- */

static struct line sleeper_line;
static uint32_t sleeper_polls, sleeper_heard;

/* It sleeps on the bell whenever there is nothing, as the progress thread does. */
static void *sleeper(void *arg)
{
    struct end *end = arg;
    while (sleeper_line.messages < 100) {
        hoccl_doorbell_announce(&end->bell);
        if (transport->arm(end->endpoint))
            hoccl_doorbell_cancel(&end->bell);
        else
            hoccl_doorbell_sleep(&end->bell, 0);
        hoccl_fetch_add(&sleeper_polls, 1u);
        end_poll(end);
        hoccl_publish(&sleeper_heard, sleeper_line.messages);
    }
    return NULL;
}

/* Without the bell this would hang; with a bell that rings for nothing it would poll more often than there is news. */
void case_bell(void)
{
    static struct line a;
    pthread_t thread;
    both_open();
    pair_open(&a, &x, &sleeper_line, &y, 1);
    sleeper_polls = 0;
    CHECK(!pthread_create(&thread, NULL, sleeper, &y), "thread");
    for (uint32_t i = 1; i <= 100; i++) {
        give_message(&a, NULL, &i, sizeof i);
        UNTIL(&x, NULL, hoccl_observe(&sleeper_heard) == i); /* it has heard this one */
        if (i % 10 == 0)
            hoccl_sleep(2 * HOCCL_MS);
    }
    pthread_join(thread, NULL);
    printf("  %u looks for 100 messages\n", sleeper_polls);
    CHECK(sleeper_polls <= 250, "%u looks for 100 messages", sleeper_polls);
    close_pair(&a, &sleeper_line);
    both_close();
}

static uint64_t thread_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * HOCCL_S + (uint64_t)t.tv_nsec;
}

/* A connection with nothing to do costs nothing. */
void case_quiet(void)
{
    static struct line a, b;
    both_open();
    pair_open(&a, &x, &b, &y, 1);
    hoccl_sleep(100 * HOCCL_MS);
    uint64_t before = thread_time();
    hoccl_sleep(1 * HOCCL_S);
    uint64_t used = thread_time() - before;
    printf("  %.2f ms of CPU in a second\n", (double)used / 1e6);
    CHECK(used < 50 * HOCCL_MS, "%llu us of CPU in a second with nothing to do", (unsigned long long)(used / HOCCL_US));
    close_pair(&a, &b);
    both_close();
}
