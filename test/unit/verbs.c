/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the verbs transport that need no RDMA: settings, the choice of port, address and packet size, the exchange
 * of queue pairs' numbers over TCP, and what is said where there is no device. */
#include "unit.h"

#include "base/setting.h"
#include "transport/gid.h"
#include "transport/port.h"
#include "transport/transport.h"
#include "transport/verbs_exchange.h"
#include "transport/verbs_setting.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

/* ---- HOCCL_VERBS ------------------------------------------------------------------------------------------------- */

static void test_setting(void **state)
{
    struct hoccl_verbs_setting s;
    (void)state;
    OK(hoccl_verbs_setting_read("gid=3,pkey=1,tc=106,sl=3,timeout=18,retry=5,rnr=0,mtu=1024", HOCCL_S, &s));
    assert_int_equal(s.gid, 3);
    assert_int_equal(s.pkey, 1);
    assert_int_equal(s.traffic_class, 106);
    assert_int_equal(s.service_level, 3);
    assert_int_equal(s.timeout, 18);
    assert_int_equal(s.retry, 5);
    assert_int_equal(s.rnr, 0);
    assert_int_equal(s.mtu, 1024);
    OK(hoccl_verbs_setting_read("", 9 * HOCCL_S, &s));
    assert_int_equal(s.gid, -1);
    assert_int_equal(s.pkey, 0);
    assert_int_equal(s.retry, 6);
    assert_int_equal(s.mtu, 0);
}

/* The longest wait that ends within the limit: 4 × 4.096 µs × 2^timeout × (retry + 1). */
static void test_patience(void **state)
{
    struct hoccl_verbs_setting s;
    (void)state;
    for (uint64_t limit = 2 * HOCCL_S; limit < 100 * HOCCL_S; limit += HOCCL_S) {
        OK(hoccl_verbs_setting_read(NULL, limit, &s));
        assert_true(hoccl_verbs_patience(&s) <= limit);
        struct hoccl_verbs_setting more = s;
        more.timeout++;
        assert_true(hoccl_verbs_patience(&more) > limit);
        OK(hoccl_verbs_setting_read("retry=1", limit, &s));
        assert_true(hoccl_verbs_patience(&s) <= limit);
    }
    OK(hoccl_verbs_setting_read("timeout=18", HOCCL_S, &s)); /* what is given counts, whatever the limit */
    assert_int_equal(s.timeout, 18);
    OK(hoccl_verbs_setting_read("timeout=0", HOCCL_S, &s));
    assert_int_equal(hoccl_verbs_patience(&s), UINT64_MAX);
}

static void test_bad_settings(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"gid", "\"gid\""},
        {"guid=3", "\"guid=3\""},
        {"gid=", "from 0 to"},
        {"gid=-1", "from 0 to"},
        {"gid=3x", "from 0 to"},
        {"gid=99999999999", "from 0 to"},
        {"tc=256", "from 0 to 255"},
        {"sl=16", "from 0 to 15"},
        {"timeout=32", "from 0 to 31"},
        {"retry=8", "from 0 to 7"},
        {"mtu=1000", "256, 512, 1024"},
        {"mtu=8192", "from 256 to 4096"},
        {"gid=1,gid=2", "gid is given twice"},
        {"gid=1,", "comma"},
        {",gid=1", "\"\""},
        {"gid=1,,tc=1", "\"\""},
        {" gid=1", "\" gid=1\""},
        {"gid=1;tc=2", "from 0 to"},
    };
    struct hoccl_verbs_setting s = {.gid = 77};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        FAILS(hoccl_verbs_setting_read(rows[i].text, HOCCL_S, &s), HOCCL_ERR_ARGUMENT, rows[i].says);
        assert_true(strstr(hoccl_error_text(), "HOCCL_VERBS"));
    }
    assert_int_equal(s.gid, 77);
}

/* ---- addresses ---------------------------------------------------------------------------------------------------- */

static struct hoccl_gid entry(int index, enum ibv_gid_type type, const char *address)
{
    struct hoccl_gid g = {.index = index, .type = type};
    char six[64];
    snprintf(six, sizeof six, "%s%s", strchr(address, ':') ? "" : "::ffff:", address);
    assert_int_equal(inet_pton(AF_INET6, six, g.gid.raw), 1);
    return g;
}

#define V1(index, address) entry(index, IBV_GID_TYPE_ROCE_V1, address)
#define V2(index, address) entry(index, IBV_GID_TYPE_ROCE_V2, address)

static void test_gid_at_3(void **state)
{
    struct hoccl_gid t[] = {V1(0, "fe80::1"), V2(1, "fe80::1"), V1(2, "10.1.2.3"), V2(3, "10.1.2.3")};
    (void)state;
    assert_int_equal(t[hoccl_gid_choose(t, 4, true, -1, "p")].index, 3);
}

/* A container's table: holes in front (they are not handed over), other kinds before it and behind. */
static void test_gid_at_12(void **state)
{
    struct hoccl_gid t[] = {V2(4, "fe80::5"), V1(7, "10.1.2.3"), V2(9, "169.254.7.7"), V2(12, "10.1.2.3"),
                            V2(15, "2001:db8::1")};
    (void)state;
    assert_int_equal(t[hoccl_gid_choose(t, 5, true, -1, "p")].index, 12);
}

static void test_gid_ula(void **state)
{
    struct hoccl_gid t[] = {V1(0, "fe80::1"), V2(1, "fe80::1"), V1(2, "fd00::7"), V2(3, "fd00::7")};
    struct hoccl_gid global[] = {V2(1, "169.254.0.9"), V2(5, "2001:db8::2")};
    struct hoccl_gid local[] = {V1(0, "fe80::1"), V2(1, "fe80::1")};
    (void)state;
    assert_int_equal(t[hoccl_gid_choose(t, 4, true, -1, "p")].index, 3);
    assert_int_equal(global[hoccl_gid_choose(global, 2, true, -1, "p")].index, 5);
    assert_int_equal(local[hoccl_gid_choose(local, 2, true, -1, "p")].index, 1);
}

static void test_gid_none(void **state)
{
    struct hoccl_gid t[] = {V1(0, "fe80::1"), V1(2, "10.1.2.3")};
    (void)state;
    assert_int_equal(hoccl_gid_choose(t, 2, true, -1, "mlx5_0 port 1"), -1);
    assert_true(strstr(hoccl_error_text(), "mlx5_0 port 1"));
    assert_true(strstr(hoccl_error_text(), "0: RoCE v1 fe80::1, 2: RoCE v1 10.1.2.3"));
    assert_true(strstr(hoccl_error_text(), "HOCCL_VERBS=gid="));
    assert_int_equal(hoccl_gid_choose(NULL, 0, true, -1, "p"), -1);
    assert_true(strstr(hoccl_error_text(), "empty"));
    assert_int_equal(t[hoccl_gid_choose(t, 2, true, 2, "p")].index, 2); /* named: taken, although of v1 */
    assert_int_equal(hoccl_gid_choose(t, 2, true, 1, "p"), -1);
    assert_true(strstr(hoccl_error_text(), "no address 1"));
}

static void test_gid_infiniband(void **state)
{
    struct hoccl_gid t[] = {entry(0, IBV_GID_TYPE_IB, "fe80::2:c903:1"), entry(1, IBV_GID_TYPE_IB, "fe80::2:c903:2")};
    (void)state;
    assert_int_equal(hoccl_gid_choose(t, 2, false, -1, "p"), 0);
    assert_int_equal(hoccl_gid_choose(t, 2, false, 1, "p"), 1);
}

static void test_gid_pairs(void **state)
{
    struct hoccl_gid four = V2(1, "10.0.0.1"), other = V2(9, "10.9.0.1"), six = V2(2, "fd00::1"), old = V1(3, "10.0.0.1");
    char text[64];
    (void)state;
    assert_true(hoccl_gid_agree(&four, &other));
    assert_false(hoccl_gid_agree(&four, &six));
    assert_false(hoccl_gid_agree(&four, &old));
    assert_string_equal(hoccl_gid_text(&four.gid, text, sizeof text), "10.0.0.1");
    assert_string_equal(hoccl_gid_text(&six.gid, text, sizeof text), "fd00::1");
}

static void test_mtu(void **state)
{
    (void)state;
    assert_int_equal(hoccl_mtu_choose(IBV_MTU_1024, IBV_MTU_4096, 0), IBV_MTU_1024);
    assert_int_equal(hoccl_mtu_choose(IBV_MTU_4096, IBV_MTU_1024, 0), IBV_MTU_1024);
    assert_int_equal(hoccl_mtu_choose(IBV_MTU_4096, IBV_MTU_4096, 0), IBV_MTU_4096);
    assert_int_equal(hoccl_mtu_choose(IBV_MTU_4096, IBV_MTU_4096, 2048), IBV_MTU_2048);
    assert_int_equal(hoccl_mtu_choose(IBV_MTU_1024, IBV_MTU_4096, 4096), IBV_MTU_1024);
    assert_int_equal(hoccl_mtu_choose(IBV_MTU_4096, IBV_MTU_4096, 256), IBV_MTU_256);
}

/* ---- ports -------------------------------------------------------------------------------------------------------- */

static void test_ports(void **state)
{
    static const struct hoccl_port_view v[] = {{.device = "mlx5_0", .number = 1, .active = true},
                                               {.device = "mlx5_1", .number = 1},
                                               {.device = "mlx5_2", .interface = "eth2", .number = 1, .active = true},
                                               {.device = "mlx5_2", .number = 2, .active = true},
                                               {.device = "mlx5_20", .number = 1, .active = true}};
    static const struct {
        const char *names, *nearest;
        int place;
    } rows[] = {{"", NULL, 0},
                {"", "mlx5_2", 2},
                {"", "mlx5_1", 0},
                {"", "mlx5_9", 0},
                {"mlx5_2", NULL, 2},
                {"mlx5_2:2", NULL, 3},
                {"mlx5_2", "mlx5_0", 2},
                {"mlx5_20,mlx5_0", NULL, 4},
                {"mlx5_1,mlx5_2:2", NULL, 3},
                {"mlx5_20,mlx5_0", "mlx5_0", 0},
                {"^mlx5_0", NULL, 2},
                {"eth2", NULL, 2},
                {"^mlx5_0,eth2", NULL, 3},
                {"eth", NULL, -1},
                {"^mlx5_0", "mlx5_0", 2},
                {"^mlx5_0,mlx5_2", NULL, 4},
                {"^mlx5_2:1", "mlx5_2", 3}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(hoccl_port_choose(v, 5, rows[i].names, rows[i].nearest), rows[i].place);
    char devices[5][HOCCL_NIC_NAME];
    assert_int_equal(hoccl_port_devices(v, 5, "", devices, 5), 3);
    assert_string_equal(devices[0], "mlx5_0");
    assert_string_equal(devices[1], "mlx5_2");
    assert_string_equal(devices[2], "mlx5_20");
    assert_int_equal(hoccl_port_devices(v, 5, "", devices, 2), 2);
    assert_int_equal(hoccl_port_devices(v, 5, "^mlx5_0,mlx5_2:1", devices, 5), 2);
    assert_string_equal(devices[0], "mlx5_2");
    assert_int_equal(hoccl_port_devices(v, 5, "mlx5_1", devices, 5), 0);
    assert_int_equal(hoccl_port_choose(v, 5, "mlx5_1", NULL), -1);
    assert_true(strstr(hoccl_error_text(), "HOCCL_NIC allows, which is mlx5_1"));
    assert_true(strstr(hoccl_error_text(), "mlx5_1:1 (down)"));
    assert_int_equal(hoccl_port_choose(v, 5, "mlx5", NULL), -1);
    assert_int_equal(hoccl_port_choose(v, 5, "^mlx5_0,mlx5_2,mlx5_20", NULL), -1);
}

/* On a machine with RDMA there is nothing to see here: the guest's tests open it. */
static void test_no_device(void **state)
{
    struct hoccl_port_view *views;
    struct hoccl_endpoint *e = NULL;
    struct hoccl_endpoint_card card;
    struct hoccl_endpoint_wish wish = {0};
    (void)state;
    OK(hoccl_settings_load());
    int n = hoccl_port_list(&views);
    if (n > 0) {
        free(views);
        return;
    }
    assert_int_equal(n, -1);
    assert_true(strstr(hoccl_error_text(), "HOCCL_NET=tcp") || strstr(hoccl_error_text(), "/dev/infiniband"));
    FAILS(hoccl_transport_verbs.open(&wish, &e, &card), HOCCL_ERR_DEVICE, "RDMA");
    assert_null(e);
    setenv("HOCCL_VERBS", "gid=x", 1);
    OK(hoccl_settings_load());
    FAILS(hoccl_transport_verbs.open(&wish, &e, &card), HOCCL_ERR_ARGUMENT, "HOCCL_VERBS");
    unsetenv("HOCCL_VERBS");
    OK(hoccl_settings_load());
}

/* ---- the exchange ------------------------------------------------------------------------------------------------- */

static const uint8_t cookie[16] = "the right one", wrong[16] = "a wrong one";

struct side {
    struct hoccl_exchange x;
    struct tcp_card card;
    struct hoccl_call call;
};

static int readied;

static bool get_ready(struct hoccl_call *call, char *why, size_t bytes)
{
    readied++;
    if (call->theirs.window != 13)
        return true;
    snprintf(why, bytes, "thirteen");
    return false;
}

static void side_open(struct side *s, const uint8_t c[16], uint32_t window)
{
    memset(s, 0, sizeof *s);
    OK(hoccl_exchange_open(&s->x, c, NULL, &s->card));
    s->call.fd = -1;
    s->call.mine.window = window;
    s->call.ready = get_ready;
}

static void call_start(struct side *s, uint64_t id, const struct tcp_card *peer, const char *name)
{
    s->call.id = id;
    s->call.peer = *peer;
    s->call.name = name;
    hoccl_exchange_start(&s->x, &s->call);
}

static void side_step(struct side *s)
{
    struct pollfd fds[16];
    uint64_t deadline = UINT64_MAX;
    int n = hoccl_exchange_wants(&s->x, fds, 16, &deadline);
    poll(fds, (nfds_t)n, 1);
    hoccl_exchange_step(&s->x);
}

static void side_close(struct side *s)
{
    hoccl_exchange_cancel(&s->x, &s->call);
    hoccl_exchange_close(&s->x);
}

#define UNTIL(a, b, expression)                                                                                            \
    do {                                                                                                                   \
        uint64_t limit = hoccl_now() + 60 * HOCCL_S;                                                                       \
        while (!(expression)) {                                                                                            \
            side_step(a);                                                                                                  \
            side_step(b);                                                                                                  \
            assert_true(hoccl_now() < limit);                                                                              \
        }                                                                                                                  \
    } while (0)

/* Whoever comes first; the lower rank dials. */
static void test_exchange(void **state)
{
    (void)state;
    for (int late = 0; late < 3; late++) {
        struct side a, b;
        side_open(&a, cookie, 5);
        side_open(&b, cookie, 6);
        readied = 0;
        if (late != 1)
            call_start(&a, 8, &b.card, "b");
        for (int i = 0; i < 50 && late == 0; i++) {
            side_step(&a);
            side_step(&b);
        }
        call_start(&b, 9, &a.card, "a");
        for (int i = 0; i < 50 && late == 1; i++) {
            side_step(&a);
            side_step(&b);
        }
        if (late == 1)
            call_start(&a, 8, &b.card, "b");
        assert_int_equal(a.call.outcome | b.call.outcome, 0);
        UNTIL(&a, &b, a.call.outcome && b.call.outcome);
        assert_int_equal(a.call.outcome, HOCCL_CALL_DONE);
        assert_int_equal(b.call.outcome, HOCCL_CALL_DONE);
        assert_int_equal(a.call.theirs.window, 6);
        assert_int_equal(b.call.theirs.window, 5);
        assert_int_equal(readied, 2);
        side_close(&a);
        side_close(&b);
    }
}

/* Another connection between the same two, one that nobody makes, is not mixed up with it. */
static void test_exchange_ids(void **state)
{
    struct side a, b;
    (void)state;
    side_open(&a, cookie, 5);
    side_open(&b, cookie, 6);
    call_start(&a, 8, &b.card, "b");
    call_start(&b, 11, &a.card, "a");
    for (int i = 0; i < 100; i++) {
        side_step(&a);
        side_step(&b);
    }
    assert_int_equal(a.call.outcome | b.call.outcome, 0);
    assert_int_equal(a.call.state, HOCCL_CALL_ASKING); /* welcomed, and waiting for its other end */
    side_close(&a);
    side_close(&b);
}

static void test_exchange_refused(void **state)
{
    struct side a, b;
    (void)state;
    /* the wrong cookie: closed without a word at every address, twice */
    side_open(&a, wrong, 5);
    side_open(&b, cookie, 6);
    call_start(&a, 8, &b.card, "rank 3 (b)");
    call_start(&b, 9, &a.card, "rank 0 (a)");
    UNTIL(&a, &b, a.call.outcome);
    assert_int_equal(a.call.outcome, HOCCL_CALL_FAILED);
    assert_true(strstr(a.call.text, "rank 3 (b)") && strstr(a.call.text, "another program listens there"));
    assert_int_equal(b.call.outcome, 0);
    side_close(&a);
    /* another endpoint at the same port: its token differs */
    struct tcp_card old = b.card;
    old.token++;
    side_open(&a, cookie, 5);
    call_start(&a, 8, &old, "rank 3 (b)");
    UNTIL(&a, &b, a.call.outcome);
    assert_true(strstr(a.call.text, "another program listens there"));
    side_close(&a);
    /* nobody listens any more */
    old = b.card;
    side_close(&b);
    side_open(&a, cookie, 5);
    call_start(&a, 8, &old, "rank 3 (b)");
    UNTIL(&a, &a, a.call.outcome);
    assert_true(strstr(a.call.text, "Connection refused"));
    side_close(&a);
}

/* The reason of the end that cannot get ready is its own; the other end hears that it has left. */
static void test_exchange_unready(void **state)
{
    (void)state;
    for (int who = 0; who < 2; who++) {
        struct side a, b;
        side_open(&a, cookie, who ? 13 : 5);
        side_open(&b, cookie, who ? 5 : 13);
        call_start(&a, 8, &b.card, "b");
        call_start(&b, 9, &a.card, "a");
        UNTIL(&a, &b, a.call.outcome && b.call.outcome);
        struct side *unready = who ? &b : &a, *other = who ? &a : &b;
        assert_string_equal(unready->call.text, "thirteen");
        assert_int_equal(other->call.outcome, HOCCL_CALL_FAILED);
        assert_true(strstr(other->call.text, "has left"));
        side_close(&a);
        side_close(&b);
    }
}

static int knock(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to))
        assert_int_equal(errno, EINPROGRESS);
    return fd;
}

/* Scanners that say nothing or something else, more than are let in at once; an exchange goes on beside them. */
static void test_exchange_strangers(void **state)
{
    struct side a, b;
    int fd[100];
    (void)state;
    side_open(&a, cookie, 5);
    side_open(&b, cookie, 6);
    for (int i = 0; i < 100; i++) {
        fd[i] = knock(b.card.port);
        if (i % 3)
            send(fd[i], "GET / HTTP/1.0\r\n\r\n", i % 3 == 1 ? 18 : 3, MSG_NOSIGNAL);
        side_step(&b);
    }
    call_start(&a, 8, &b.card, "b");
    call_start(&b, 9, &a.card, "a");
    UNTIL(&a, &b, a.call.outcome && b.call.outcome);
    assert_int_equal(a.call.outcome, HOCCL_CALL_DONE);
    assert_int_equal(b.call.outcome, HOCCL_CALL_DONE);
    for (int i = 0; i < 100; i++)
        close(fd[i]);
    side_close(&a);
    side_close(&b);
}

static void test_exchange_timeout(void **state)
{
    struct side a, b;
    (void)state;
    hoccl_settings.init_timeout = HOCCL_S;
    side_open(&a, cookie, 5);
    side_open(&b, cookie, 6);
    call_start(&a, 8, &b.card, "rank 3 (b)");
    UNTIL(&a, &b, a.call.outcome);
    assert_int_equal(a.call.outcome, HOCCL_CALL_FAILED);
    assert_true(strstr(a.call.text, "rank 3 (b)") && strstr(a.call.text, "HOCCL_INIT_TIMEOUT"));
    side_close(&a);
    side_close(&b);
    hoccl_settings.init_timeout = 300 * HOCCL_S;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_setting),
        cmocka_unit_test(test_patience),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_gid_at_3),
        cmocka_unit_test(test_gid_at_12),
        cmocka_unit_test(test_gid_ula),
        cmocka_unit_test(test_gid_none),
        cmocka_unit_test(test_gid_infiniband),
        cmocka_unit_test(test_gid_pairs),
        cmocka_unit_test(test_mtu),
        cmocka_unit_test(test_ports),
        cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_exchange_ids),
        cmocka_unit_test(test_exchange_refused),
        cmocka_unit_test(test_exchange_unready),
        cmocka_unit_test(test_exchange_strangers),
        cmocka_unit_test(test_exchange_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
