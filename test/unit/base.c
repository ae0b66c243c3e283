/* SPDX-License-Identifier: Apache-2.0 */
/* The settings and their texts, error texts, cyclic comparison, lists, doorbells. */
#include "unit.h"

#include "base/doorbell.h"
#include "base/list.h"
#include "base/log.h"
#include "base/setting.h"

#include <pthread.h>

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static void clear(void)
{
    const char *name, *value, *sentence;
    for (int i = 0; hoccl_settings_row(i, &name, &value, &sentence); i++)
        unsetenv(name);
}

static void test_defaults(void **state)
{
    (void)state;
    clear();
    OK(hoccl_settings_load());
    assert_int_equal(hoccl_settings.debug, HOCCL_LOG_WARN);
    assert_int_equal(hoccl_settings.init_timeout, 300 * HOCCL_S);
    assert_int_equal(hoccl_settings.timeout, 30 * HOCCL_S);
    assert_int_equal(hoccl_settings.wait_timeout, 0);
    assert_int_equal(hoccl_settings.chunk, 128u << 20);
    assert_int_equal(hoccl_settings.gate, HOCCL_GATE_AUTO);
    assert_int_equal(hoccl_settings.test_break, HOCCL_BREAK_NOTHING);
    assert_string_equal(hoccl_settings.topo_file, "");
}

static void test_values(void **state)
{
    (void)state;
    clear();
    setenv("HOCCL_DEBUG", "trace", 1);
    setenv("HOCCL_TIMEOUT", "2", 1);
    setenv("HOCCL_WAIT_TIMEOUT", "4294967295", 1);
    setenv("HOCCL_GATE", "h2d", 1);
    setenv("HOCCL_TEST_SEQUENCE", "4294967295", 1);
    setenv("HOCCL_TOPO_FILE", "/tmp/a b.xml", 1);
    OK(hoccl_settings_load());
    assert_int_equal(hoccl_settings.debug, HOCCL_LOG_TRACE);
    assert_int_equal(hoccl_settings.timeout, 2 * HOCCL_S);
    assert_int_equal(hoccl_settings.wait_timeout, 4294967295 * HOCCL_S);
    assert_int_equal(hoccl_settings.gate, HOCCL_GATE_H2D);
    assert_int_equal(hoccl_settings.first_sequence, 4294967295);
    assert_string_equal(hoccl_settings.topo_file, "/tmp/a b.xml");
    clear();
    setenv("HOCCL_TIMEOUT", "", 1); /* empty is as unset */
    OK(hoccl_settings_load());
    assert_int_equal(hoccl_settings.timeout, 30 * HOCCL_S);
    assert_int_equal(hoccl_settings.debug, HOCCL_LOG_WARN);
}

static void test_bytes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"1", 1}, {"65536", 65536}, {"64K", 65536}, {"4M", 4 << 20}, {"1G", 1 << 30}, {"8589934591G", 8589934591u << 30}};
    (void)state;
    clear();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv("HOCCL_CHUNK", rows[i].text, 1);
        OK(hoccl_settings_load());
        assert_int_equal(hoccl_settings.chunk, rows[i].bytes);
    }
}

static void test_bad_values(void **state)
{
    static const struct {
        const char *name, *value, *words;
    } rows[] = {
        {"HOCCL_DEBUG", "Warn", "error|warn|info|trace"},
        {"HOCCL_DEBUG", "war", "error|warn|info|trace"},
        {"HOCCL_DEBUG", "warn|info", "error|warn|info|trace"},
        {"HOCCL_TIMEOUT", "2s", "whole seconds"},
        {"HOCCL_TIMEOUT", "-1", "whole seconds"},
        {"HOCCL_TIMEOUT", "1.5", "whole seconds"},
        {"HOCCL_TIMEOUT", "4294967296", "whole seconds"},
        {"HOCCL_TIMEOUT", "99999999999999999999999", "whole seconds"},
        {"HOCCL_INIT_TIMEOUT", "soon", "whole seconds"},
        {"HOCCL_WAIT_TIMEOUT", "0x10", "whole seconds"},
        {"HOCCL_CHUNK", "0", "bytes"},
        {"HOCCL_SHARE", "0", "percent"},
        {"HOCCL_SHARE", "101", "percent"},
        {"HOCCL_CHUNK", "K", "bytes"},
        {"HOCCL_CHUNK", "4k", "bytes"},
        {"HOCCL_CHUNK", "4MB", "bytes"},
        {"HOCCL_CHUNK", "-4M", "bytes"},
        {"HOCCL_CHUNK", "8589934592G", "bytes"},
        {"HOCCL_CHUNK", "1111111111111111111111111111111111111111", "bytes"},
        {"HOCCL_GATE", "pull", "auto|none|push|h2d"},
        {"HOCCL_TEST_SEQUENCE", "one", "a whole number"},
        {"HOCCL_TEST_BREAK", "all", "nothing|local-copy"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        clear();
        setenv(rows[i].name, rows[i].value, 1);
        FAILS(hoccl_settings_load(), HOCCL_ERR_ARGUMENT, rows[i].words);
        FAILS(HOCCL_ERR_ARGUMENT, HOCCL_ERR_ARGUMENT, rows[i].name);
        FAILS(HOCCL_ERR_ARGUMENT, HOCCL_ERR_ARGUMENT, rows[i].value);
    }
    clear();
    char long_name[1100];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    setenv("HOCCL_TOPO_FILE", long_name, 1);
    FAILS(hoccl_settings_load(), HOCCL_ERR_ARGUMENT, "HOCCL_TOPO_FILE");
    clear();
    OK(hoccl_settings_load());
}

/* What is printed on standard error while the settings are read. */
static void load_into(char *text, size_t bytes)
{
    FILE *f = tmpfile();
    int old = dup(STDERR_FILENO);
    assert_non_null(f);
    dup2(fileno(f), STDERR_FILENO);
    HOCCL_Result r = hoccl_settings_load();
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(f);
    text[fread(text, 1, bytes - 1, f)] = 0;
    fclose(f);
    OK(r);
}

static void test_unknown_names(void **state)
{
    static const struct {
        const char *name, *words; /* NULL: nothing is said */
    } rows[] = {
        {"HOCCL_TIMOUT", "HOCCL_TIMOUT is no setting of HOCCL: did you mean HOCCL_TIMEOUT?"},
        {"HOCCL_WAIT_TIMEOU", "did you mean HOCCL_WAIT_TIMEOUT?"},
        {"HOCCL_debug", NULL /* further than a slip away */},
        {"HOCCL_INITTIMEOUT", "did you mean HOCCL_INIT_TIMEOUT?"},
        {"HOCCL_SOMETHING_QUITE_DIFFERENT", "HOCCL_SOMETHING_QUITE_DIFFERENT is no setting of HOCCL\n"},
        {"HOCCL_EMU_DEVICES", NULL},
        {"HOCCLX", NULL},
        {"NCCL_DEBUG", NULL},
    };
    char text[1000];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        clear();
        setenv(rows[i].name, "1", 1);
        load_into(text, sizeof text);
        unsetenv(rows[i].name);
        if (!strcmp(rows[i].name, "HOCCL_debug"))
            assert_non_null(strstr(text, "HOCCL_debug is no setting"));
        else if (!rows[i].words)
            assert_string_equal(text, "");
        else if (!strstr(text, rows[i].words))
            fail_msg("\"%s\" does not say \"%s\"", text, rows[i].words);
    }
    setenv("HOCCL_TIMOUT", "1", 1);
    setenv("HOCCL_DEBUG", "error", 1); /* warnings can be turned off */
    load_into(text, sizeof text);
    assert_string_equal(text, "");
    unsetenv("HOCCL_TIMOUT");
    clear();
}

static void test_rows(void **state)
{
    const char *name, *value, *sentence;
    int n = 0;
    (void)state;
    while (hoccl_settings_row(n, &name, &value, &sentence)) {
        assert_int_equal(strncmp(name, "HOCCL_", 6), 0);
        assert_true(strlen(sentence) > 10);
        n++;
    }
    assert_true(n >= 10 && n <= 22);
    assert_int_equal(hoccl_settings_row(-1, &name, &value, &sentence), 0);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void *other_thread(void *arg)
{
    (void)arg;
    assert_string_equal(hoccl_error_text(), "");
    hoccl_fail(HOCCL_ERR_SYSTEM, "of the other thread");
    return NULL;
}

static void test_errors(void **state)
{
    char text[2 * HOCCL_ERROR_TEXT];
    pthread_t t;
    (void)state;
    assert_int_equal(hoccl_fail(HOCCL_ERR_PEER, "%d of %s", 3, "four"), HOCCL_ERR_PEER);
    assert_int_equal(hoccl_fail_context(HOCCL_ERR_PEER, "while %s", "testing"), HOCCL_ERR_PEER);
    assert_string_equal(hoccl_error_text(), "while testing: 3 of four");
    pthread_create(&t, NULL, other_thread, NULL);
    pthread_join(t, NULL);
    assert_string_equal(hoccl_error_text(), "while testing: 3 of four");
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    hoccl_fail(HOCCL_ERR_PEER, "%s", text); /* too long: cut, never written past */
    assert_int_equal(strlen(hoccl_error_text()), HOCCL_ERROR_TEXT - 1);
    hoccl_fail_context(HOCCL_ERR_PEER, "%s", text);
    assert_int_equal(strlen(hoccl_error_text()), HOCCL_ERROR_TEXT - 1);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* whose allocators end the program instead */
    assert_null(hoccl_alloc(SIZE_MAX / 2, "a great many bytes"));
    FAILS(HOCCL_ERR_MEMORY, HOCCL_ERR_MEMORY, "a great many bytes");
#endif
}

/* ---- cyclic comparison ------------------------------------------------------------------------------------------- */

static void test_reached(void **state)
{
    static const uint32_t starts[] = {0, 1, 0x7ffffff0, 0x80000000, 0xfffffff0, 0xffff};
    (void)state;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        for (uint32_t d = 0; d < 600; d++) {
            assert_true(hoccl_reached(starts[i] + d, starts[i]));
            assert_true(hoccl_reached16((starts[i] + d) & 0xffff, starts[i]));
            assert_int_equal(hoccl_reached(starts[i], starts[i] + d), d == 0);
            assert_int_equal(hoccl_reached16(starts[i] & 0xffff, starts[i] + d), d == 0);
        }
    assert_true(hoccl_reached(0x3fffffff, 0)); /* an abort's jump */
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

struct item {
    int value;
    struct hoccl_list link;
};

static void expect_list(struct hoccl_list *head, const int *values, int n)
{
    int i = 0;
    for (struct hoccl_list *l = head->next; l != head; l = l->next, i++) {
        assert_true(i < n);
        assert_int_equal(hoccl_entry(l, struct item, link)->value, values[i]);
        assert_ptr_equal(l->next->prev, l);
    }
    assert_int_equal(i, n);
}

static void test_lists(void **state)
{
    struct item item[5];
    struct hoccl_list a, b;
    (void)state;
    hoccl_list_init(&a);
    hoccl_list_init(&b);
    assert_null(hoccl_list_take(&a));
    for (int i = 0; i < 5; i++) {
        item[i].value = i;
        hoccl_list_append(&a, &item[i].link);
    }
    hoccl_list_remove(&item[2].link);
    hoccl_list_remove(&item[2].link); /* twice is nothing */
    expect_list(&a, (int[]){0, 1, 3, 4}, 4);
    hoccl_list_append(&b, &item[2].link);
    hoccl_list_move(&b, &a);
    expect_list(&b, (int[]){2, 0, 1, 3, 4}, 5);
    expect_list(&a, NULL, 0);
    hoccl_list_move(&b, &a);
    expect_list(&b, (int[]){2, 0, 1, 3, 4}, 5);
    assert_int_equal(hoccl_entry(hoccl_list_take(&b), struct item, link)->value, 2);
    expect_list(&b, (int[]){0, 1, 3, 4}, 4);
}

/* ---- doorbell ---------------------------------------------------------------------------------------------------- */

#define RINGS 20000

struct shop {
    struct hoccl_doorbell bell;
    uint32_t work, seen;
};

/* Every piece of work is seen: a ring that gets lost would leave this thread asleep for ever. */
static void *sleeper(void *arg)
{
    struct shop *s = arg;
    while (s->seen < RINGS) {
        uint32_t w = hoccl_observe(&s->work);
        if (w != s->seen) {
            hoccl_publish(&s->seen, w);
            continue;
        }
        hoccl_doorbell_announce(&s->bell);
        if (hoccl_observe(&s->work) != s->seen)
            hoccl_doorbell_cancel(&s->bell);
        else
            hoccl_doorbell_sleep(&s->bell, 0);
    }
    return NULL;
}

static void test_doorbell(void **state)
{
    struct shop s = {.work = 0};
    pthread_t t;
    (void)state;
    alarm(60);
    pthread_create(&t, NULL, sleeper, &s);
    for (uint32_t i = 1; i <= RINGS; i++) {
        hoccl_publish(&s.work, i);
        hoccl_doorbell_ring(&s.bell);
        while (i % 8 == 0 && hoccl_observe(&s.seen) != i) /* now and then let it fall asleep */
            usleep(1);
    }
    pthread_join(t, NULL);
    alarm(0);
    uint64_t begun = hoccl_now();
    hoccl_doorbell_announce(&s.bell);
    hoccl_doorbell_sleep(&s.bell, 20 * HOCCL_MS);
    assert_true(hoccl_now() - begun >= 19 * HOCCL_MS);
    begun = hoccl_now();
    hoccl_doorbell_announce(&s.bell);
    hoccl_doorbell_ring(&s.bell); /* before the sleep: it must not be slept through */
    hoccl_doorbell_sleep(&s.bell, 10 * HOCCL_S);
    assert_true(hoccl_now() - begun < 5 * HOCCL_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_values),        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bad_values), cmocka_unit_test(test_unknown_names), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_errors),   cmocka_unit_test(test_reached),       cmocka_unit_test(test_lists),
        cmocka_unit_test(test_doorbell),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
