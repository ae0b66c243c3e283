/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of transports share: endpoints and connections, and a record of what has come out of them. */
#ifndef ENDS_H
#define ENDS_H

#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>

#define LIMIT_S 60           /* against hangs only */
#define WORDS 4096

#define CHECK(condition, ...)                                                                                                \
    do {                                                                                                                     \
        if (!(condition)) {                                                                                                  \
            fprintf(stderr, "%s:%d: not true: %s: ", __FILE__, __LINE__, #condition);                                        \
            fprintf(stderr, __VA_ARGS__);                                                                                    \
            fprintf(stderr, "\n");                                                                                           \
            exit(1);                                                                                                         \
        }                                                                                                                    \
    } while (0)

/* One end of a connection, and what it has heard. */
struct line {
    struct hoccl_connection *connection;
    struct end *end;
    bool joined, closed, broken;
    char text[1024];                /* of BROKEN */
    unsigned messages, written, arrived;
    uint64_t arrived_bytes;
    char first[HOCCL_MESSAGE_BYTES], last[HOCCL_MESSAGE_BYTES]; /* messages */
    size_t last_bytes;
    uint8_t seen[WORDS];            /* how often a word has arrived, by word % WORDS */
    uint8_t done[WORDS];            /* how often a tag was written, by tag % WORDS */
    void (*on_message)(struct line *line, const void *bytes, size_t count);
};

struct end {
    struct hoccl_endpoint *endpoint;
    struct hoccl_endpoint_card card;
    struct hoccl_doorbell bell;
    unsigned events;
    unsigned flushed, unflushed;    /* flushes that were done, that could not be done */
    uint8_t flush[WORDS];           /* how often one was answered, by tag % WORDS */
    char why[1024];                 /* of the last that could not be done */
    unsigned called;                /* events CALLED, and the last one's id */
    uint64_t called_id;
};

extern const struct hoccl_transport *transport; /* the one under test */
extern uint8_t test_cookie[16];

void end_open(struct end *end);
void end_close(struct end *end);

/* Take the events that there are. */
void end_poll(struct end *end);
void ends_poll(struct end *end, struct end *other);

/* A connection of `end`, joined to the owner of `card` if it is not NULL. */
void line_open(struct line *line, struct end *end, uint64_t id, const struct hoccl_endpoint_card *card);
void line_close(struct line *line);

/* A joined pair: a of end x, b of end y. */
void pair_open(struct line *a, struct end *x, struct line *b, struct end *y, uint64_t number);

/* Poll both (y may be NULL) until the expression is true. */
#define UNTIL(x, y, expression)                                                                                              \
    do {                                                                                                                     \
        uint64_t give_up = end_deadline();                                                                                   \
        while (!(expression)) {                                                                                              \
            ends_poll(x, y);                                                                                                 \
            CHECK(!end_late(give_up), "nothing for %d s", LIMIT_S);                                                          \
        }                                                                                                                    \
    } while (0)
uint64_t end_deadline(void);
bool end_late(uint64_t deadline);

/* Memory with guards before and behind it, registered; its first byte `odd` bytes off a page. */
struct buffer {
    char *whole, *bytes;
    size_t size, odd;
    struct hoccl_region region;
    struct end *end;
};
void buffer_open(struct buffer *buffer, struct end *end, size_t size, size_t odd, int fill);
void buffer_close(struct buffer *buffer);
void buffer_guards(const struct buffer *buffer);

/* The byte at `i` of pattern `seed`; fill and compare. */
void pattern_fill(char *bytes, size_t n, uint64_t seed);
bool pattern_holds(const char *bytes, size_t n, uint64_t seed);

/* Give it, polling while there is no room. */
void give_write(struct line *line, struct end *other, const struct buffer *from, size_t offset, struct hoccl_region_key to,
                size_t to_offset, size_t bytes, uint32_t word);
void give_message(struct line *line, struct end *other, const void *bytes, size_t count);

/* Descriptors, threads, and resident KiB of this process. */
int process_descriptors(void);
int process_threads(void);
long process_memory(void);

#endif
