/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport has to do: "transport NAME [CASE…]". The name "tcp3" is tcp with three I/O threads. Two endpoints in this process; joining is here, what moves in
 * transport_data.c, how connections end and threads sleep in transport_end.c. */
#include "transport_cases.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "transport/tcp.h"

#include <string.h>

struct end x, y;

void set(const char *name, const char *value)
{
    setenv(name, value, 1);
    CHECK(!hoccl_settings_load(), "%s", hoccl_error_text());
}

void both_open(void)
{
    end_open(&x);
    end_open(&y);
}

void both_close(void)
{
    end_close(&x);
    end_close(&y);
}

void close_pair(struct line *a, struct line *b)
{
    line_close(a);
    UNTIL(&x, &y, b->closed || b->broken);
    CHECK(b->closed, "%s", b->text);
    line_close(b);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

void case_describe(void)
{
    char text[1024] = "";
    both_open();
    transport->describe(x.endpoint, text, sizeof text);
    printf("%s\n", text);
    CHECK(strstr(text, transport->name) && !strchr(text, '\n'), "%s", text);
    CHECK(!strcmp(x.card.transport, transport->name), "the card says %s", x.card.transport);
    both_close();
}

void case_before_join(void)
{
    static struct line a, b;
    struct hoccl_lane_count n[HOCCL_LANES_MAX];
    struct buffer f;
    both_open();
    line_open(&a, &x, 2, NULL);
    buffer_open(&f, &x, 100, 0, 1);
    struct hoccl_write w = {.from = &f.region, .to = f.region.key, .bytes = 1};
    CHECK(!transport->message(a.connection, "m", 1) && !transport->write(a.connection, &w), "taken before join");
    CHECK(transport->idle(a.connection) && !transport->lanes(a.connection, n), "not idle, or lanes");
    CHECK(!transport->join(a.connection, &y.card), "%s", hoccl_error_text());
    CHECK(!transport->message(a.connection, "m", 1) && !transport->write(a.connection, &w), "taken before JOINED");
    line_open(&b, &y, 3, &x.card);
    UNTIL(&x, &y, a.joined && b.joined);
    CHECK(transport->lanes(a.connection, n) == transport->lanes(b.connection, n), "ends differ in lanes");
    close_pair(&a, &b);
    buffer_close(&f);
    both_close();
}

void case_other_transport(void)
{
    struct line a;
    struct hoccl_endpoint_card card;
    both_open();
    card = y.card;
    snprintf(card.transport, sizeof card.transport, "pigeon");
    line_open(&a, &x, 2, NULL);
    CHECK(transport->join(a.connection, &card), "joined a pigeon");
    CHECK(strstr(hoccl_error_text(), "pigeon") && strstr(hoccl_error_text(), transport->name), "%s", hoccl_error_text());
    line_close(&a);
    both_close();
}

/* Nobody joins at the other end: BROKEN at the end that dials, and at the one that listens. */
void case_join_timeout(void)
{
    for (uint64_t id = 4; id < 6; id++) {
        struct line a;
        set("HOCCL_INIT_TIMEOUT", "1");
        both_open();
        line_open(&a, &x, id, &y.card);
        UNTIL(&x, &y, a.broken);
        printf("  %s\n", a.text);
        CHECK(strstr(a.text, "HOCCL_INIT_TIMEOUT"), "%s", a.text);
        CHECK(strstr(a.text, id & 1 ? "rank 0 (here)" : "rank 1 (there)"), "%s", a.text);
        line_close(&a);
        both_close();
    }
}

/* The peer has gone before it could be reached. */
void case_join_nobody(void)
{
    struct line a;
    set("HOCCL_TIMEOUT", "2");
    both_open();
    end_close(&y);
    line_open(&a, &x, 8, &y.card);
    UNTIL(&x, NULL, a.broken);
    printf("  %s\n", a.text);
    CHECK(strstr(a.text, "rank 1 (there)"), "%s", a.text);
    line_close(&a);
    end_close(&x);
}

/* A connection may be closed in any state. */
void case_close_any(void)
{
    static struct line a, b;
    both_open();
    line_open(&a, &x, 2, NULL);
    line_close(&a);
    line_open(&a, &x, 4, &y.card);
    line_close(&a);
    line_open(&b, &y, 7, &x.card);
    line_close(&b);
    for (int i = 0; i < 100; i++) {
        line_open(&a, &x, 8, &y.card);
        for (int k = 0; k < i; k++)
            end_poll(&x);
        line_close(&a);
    }
    pair_open(&a, &x, &b, &y, 50);
    close_pair(&a, &b);
    both_close();
}

/* Who does not know the cookie is refused, and disturbs nobody. */
void case_cookie(void)
{
    static struct line a, b, s, t;
    static struct end z;
    set("HOCCL_TIMEOUT", "2");
    set("HOCCL_INIT_TIMEOUT", "3");
    both_open();
    test_cookie[0] ^= 1;
    end_open(&z);
    test_cookie[0] ^= 1;
    line_open(&s, &z, 2, &y.card);
    line_open(&t, &y, 3, &z.card);
    pair_open(&a, &x, &b, &y, 20);
    UNTIL(&z, &y, s.broken && t.broken);
    printf("  %s\n  %s\n", s.text, t.text);
    give_message(&a, &y, "still here", 10);
    UNTIL(&x, &y, b.messages == 1);
    line_close(&s);
    line_close(&t);
    close_pair(&a, &b);
    end_close(&z);
    both_close();
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"describe", case_describe},       {"before_join", case_before_join}, {"other_transport", case_other_transport},
    {"join_timeout", case_join_timeout}, {"join_nobody", case_join_nobody}, {"close_any", case_close_any},
    {"cookie", case_cookie},           {"messages", case_messages},       {"backpressure", case_backpressure},
    {"sizes", case_sizes},             {"many", case_many},               {"threads", case_threads},         {"lanes", case_lanes},
    {"connections", case_connections}, {"regions", case_regions},         {"region_threads", case_region_threads},
    {"close_idle", case_close_idle},   {"close_busy", case_close_busy},   {"both_close", case_both_close},
    {"cycles", case_cycles},           {"bell", case_bell},               {"quiet", case_quiet},
    {"summon", case_summon},           {"summon_nobody", case_summon_nobody},
};

static const struct hoccl_transport *by_name(const char *name)
{
    if (!strcmp(name, "tcp3")) {
        hoccl_tcp_threads = 3;
        name = "tcp";
    }
    setenv("HOCCL_NET", name, 1);
    CHECK(!hoccl_settings_load(), "%s", hoccl_error_text());
    const struct hoccl_transport *t = hoccl_transport_choose();
    CHECK(t && !strcmp(t->name, name), "%s", hoccl_error_text());
    return t;
}

static bool wanted(int argc, char **argv, const char *name)
{
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], name))
            return true;
    return argc <= 2;
}

int main(int argc, char **argv)
{
    int run = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    transport = by_name(argc > 1 ? argv[1] : "tcp");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!wanted(argc, argv, cases[i].name))
            continue;
        uint64_t begin = hoccl_now();
        unsetenv("HOCCL_TIMEOUT");
        unsetenv("HOCCL_INIT_TIMEOUT");
        unsetenv("HOCCL_LANES");
        CHECK(!hoccl_settings_load(), "%s", hoccl_error_text());
        printf("== %s\n", cases[i].name);
        cases[i].run();
        printf("   %.2f s\n", (double)(hoccl_now() - begin) / 1e9);
        run++;
    }
    CHECK(run, "no such case");
    return 0;
}
