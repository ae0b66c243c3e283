/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that one end begins while the other knows nothing of it. */
#include "transport_cases.h"

#include "base/error.h"

#include <string.h>

static void summon(struct line *line, struct end *end, uint64_t id, const struct end *peer)
{
    line_open(line, end, id, NULL);
    HOCCL_Result r = transport->summon(line->connection, &peer->card);
    CHECK(!r, "summon: %s", hoccl_error_text());
}

/* Which of the two ends is first: the one that dials (0) or the other; x is the first. */
static void answered(uint64_t number, uint64_t first)
{
    static struct line a, b;
    unsigned before = y.called;
    summon(&a, &x, 2 * number + first, &y);
    UNTIL(&x, &y, y.called > before);
    CHECK(y.called_id == 2 * number, "called for %llu", (unsigned long long)y.called_id);
    CHECK(!a.joined && !a.broken, "joined, or broken (%s), before the other end was made", a.text);
    summon(&b, &y, 2 * number + !first, &x);
    UNTIL(&x, &y, (a.joined || a.broken) && (b.joined || b.broken));
    CHECK(a.joined && b.joined, "%s %s", a.text, b.text);
    give_message(&a, &y, "there", 6);
    give_message(&b, &x, "back", 5);
    UNTIL(&x, &y, a.messages == 1 && b.messages == 1);
    close_pair(&a, &b);
}

static void declined(uint64_t number, uint64_t first)
{
    static struct line a;
    unsigned before = y.called;
    summon(&a, &x, 2 * number + first, &y);
    UNTIL(&x, &y, y.called > before);
    transport->decline(y.endpoint, 2 * number);
    UNTIL(&x, &y, a.broken);
    CHECK(strstr(a.text, "no part in the communicator any more"), "it says: %s", a.text);
    line_close(&a);
}

/* Both ends at once, many pairs: none is lost and none is made twice. */
static void at_once(uint64_t number)
{
    enum { PAIRS = 8 };
    static struct line a[PAIRS], b[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        summon(&a[i], &x, 2 * (number + (uint64_t)i) + (i & 1), &y);
        if (i & 2)
            ends_poll(&x, &y);
        summon(&b[i], &y, 2 * (number + (uint64_t)i) + !(i & 1), &x);
    }
    for (int i = 0; i < PAIRS; i++) {
        UNTIL(&x, &y, (a[i].joined || a[i].broken) && (b[i].joined || b[i].broken));
        CHECK(a[i].joined && b[i].joined, "%s %s", a[i].text, b[i].text);
    }
    for (int i = 0; i < PAIRS; i++)
        close_pair(&a[i], &b[i]);
}

void case_summon(void)
{
    both_open();
    for (uint64_t first = 0; first < 2; first++) {
        answered(10 + first, first);
        declined(20 + first, first);
    }
    at_once(30);
    both_close();
}

/* The peer has ended: long before its own limit would be over, whichever end is the first. */
void case_summon_nobody(void)
{
    static struct line a[2];
    set("HOCCL_TIMEOUT", "20");
    both_open();
    end_close(&y);
    for (uint64_t first = 0; first < 2; first++)
        summon(&a[first], &x, 40 + first, &y);
    UNTIL(&x, (struct end *)NULL, a[0].broken && a[1].broken);
    for (int i = 0; i < 2; i++) {
        CHECK(strstr(a[i].text, "cannot be reached"), "it says: %s", a[i].text);
        line_close(&a[i]);
    }
    end_close(&x);
}
