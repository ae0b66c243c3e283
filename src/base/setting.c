/* SPDX-License-Identifier: Apache-2.0 */
/* One table for all settings: it feeds the parser, the warning about unknown names and the tools' listings. */
#include "base/setting.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct hoccl_settings hoccl_settings;

extern char **environ;

enum kind { WORD, SECONDS, POSITIVE, BYTES, NUMBER, MILLISECONDS, PERCENT, TEXT, ELSEWHERE };

struct row {
    const char *name;
    enum kind kind;
    void *target;
    const char *normal; /* the default, written as a user would */
    const char *words;  /* WORD: the allowed ones, in the order of the enum */
    const char *sentence;
};

/* WORD targets are read as int; every enum above has that size. */
_Static_assert(sizeof(enum hoccl_gate_choice) == sizeof(int) && sizeof(enum hoccl_break) == sizeof(int) &&
                   sizeof(enum hoccl_net_choice) == sizeof(int),
               "enum is int");

static const struct row table[] = {
    {"HOCCL_DEBUG", WORD, &hoccl_settings.debug, "warn", "error|warn|info|trace", "how much is printed on standard error"},
    {"HOCCL_DEVICE", ELSEWHERE, NULL, "auto", "auto|cuda|emu", "the driver: real if there is a GPU, or one of them by force"},
    {"HOCCL_INIT_TIMEOUT", POSITIVE, &hoccl_settings.init_timeout, "300", NULL, "how long start-up waits for other ranks"},
    {"HOCCL_TIMEOUT", POSITIVE, &hoccl_settings.timeout, "30", NULL, "a transfer that has not moved for so long is an error"},
    {"HOCCL_WAIT_TIMEOUT", SECONDS, &hoccl_settings.wait_timeout, "0", NULL,
     "a peer that has not posted its side for so long is an error (0: never)"},
    {"HOCCL_CHUNK", BYTES, &hoccl_settings.chunk, "128M", NULL, "most bytes that a copy engine is given at once"},
    {"HOCCL_SHARE", PERCENT, &hoccl_settings.share, "100", NULL,
     "how much of a copy engine's time HOCCL takes at most; the rest is left to the application's own copies"},
    {"HOCCL_PAUSE", MILLISECONDS, &hoccl_settings.pause, "1000", NULL,
     "the longest time in ms that a foreground phase holds up operations (0: phases count for nothing)"},
    {"HOCCL_DETOUR", WORD, &hoccl_settings.detour, "on", "off|on",
     "large messages between two GPUs of a node go through host memory too, beside the link"},
    {"HOCCL_BLOCKING", WORD, &hoccl_settings.blocking, "off", "off|on",
     "calls (GroupEnd in a group) return when their operations have completed, so that nothing the program does next can stand in their way"},
    {"HOCCL_GATE", WORD, (int *)&hoccl_settings.gate, "auto", "auto|none|push|h2d|compute",
     "the small copy in front of a parked wait that keeps it out of the kernels' way"},
    {"HOCCL_TOPO_FILE", TEXT, hoccl_settings.topo_file, "", NULL,
     "an XML file of hwloc to go by instead of this machine, as made by lstopo FILE.xml"},
    {"HOCCL_NET", WORD, (int *)&hoccl_settings.net, "auto", "auto|verbs|tcp",
     "what carries bytes between nodes: RDMA (verbs) if there is an active port, else TCP, or one of them by force"},
    {"HOCCL_NIC", TEXT, hoccl_settings.nic, "", NULL,
     "network interfaces or devices to use, separated by commas (empty: all that lead to the peer; ^NAME: all but NAME)"},
    {"HOCCL_PORTS", TEXT, hoccl_settings.ports, "", NULL,
     "TCP ports to listen on, as FIRST-LAST (empty: any that is free)"},
    {"HOCCL_LANES", NUMBER, &hoccl_settings.lanes, "0", NULL,
     "sockets or queue pairs for the data of a connection, at most 16 (0: chosen)"},
    {"HOCCL_VERBS", TEXT, hoccl_settings.verbs, "", NULL,
     "how RDMA queue pairs are made, as gid=3,pkey=0,tc=106,sl=3,timeout=18,retry=6,rnr=6,mtu=4096"},
    {"HOCCL_CONNECT_MAX", NUMBER, &hoccl_settings.connect_max, "32", NULL,
     "ranks of a communicator up to which all that are on different nodes connect when it is made; in a larger one a pair connects "
     "when it first has something to send"},
    {"HOCCL_TEST_SEQUENCE", NUMBER, &hoccl_settings.first_sequence, "0", NULL, "for tests: where sequence counters begin"},
    {"HOCCL_TEST_BREAK", WORD, (int *)&hoccl_settings.test_break, "nothing", "nothing|local-copy|early-flag|early-reuse|no-flush|no-nudge|no-rotation|no-eager",
     "for tests: break the executor, so that a test can show that it notices"},
    {"HOCCL_TEST_NODE", TEXT, hoccl_settings.test_node, "", NULL,
     "for tests: ranks take themselves to be on several nodes, rank mod N (2) or in blocks (3+5)"},
};

#define ROWS ((int)(sizeof table / sizeof *table))

int hoccl_settings_row(int i, const char **name, const char **value, const char **sentence)
{
    if (i < 0 || i >= ROWS)
        return 0;
    *name = table[i].name;
    *value = table[i].normal;
    *sentence = table[i].sentence;
    return 1;
}

/* The place of `value` in "a|b|c", or −1. */
static int word_index(const char *words, const char *value)
{
    size_t n = strlen(value);
    for (int i = 0; *words; i++) {
        size_t w = strcspn(words, "|");
        if (w == n && !strncmp(words, value, n))
            return i;
        words += w + (words[w] == '|');
    }
    return -1;
}

static bool read_number(const char *value, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(value, &end, 10);
    if (errno || end == value || *value == '-' || *end)
        return false;
    *out = v;
    return true;
}

static bool read_seconds(const char *value, uint64_t *out)
{
    uint64_t v;
    if (!read_number(value, &v) || v > UINT32_MAX)
        return false;
    *out = v * HOCCL_S;
    return true;
}

/* "4096", "64K", "128M", "1G". */
static bool read_bytes(const char *value, uint64_t *out)
{
    static const char units[] = "KMG";
    size_t n = strlen(value);
    const char *unit = n && value[n - 1] ? strchr(units, value[n - 1]) : NULL;
    char digits[24];
    uint64_t v;
    if (!n || n >= sizeof digits)
        return false;
    memcpy(digits, value, n + 1);
    if (unit)
        digits[n - 1] = 0;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (!read_number(digits, &v) || !v || v > (UINT64_MAX >> 1 >> shift))
        return false;
    *out = v << shift;
    return true;
}

static bool read_text(const char *value, char *out)
{
    size_t n = strlen(value);
    if (n >= HOCCL_SETTING_TEXT)
        return false;
    memcpy(out, value, n + 1);
    return true;
}

static bool read_row(const struct row *r, const char *value)
{
    uint64_t ms;
    int w;
    switch (r->kind) {
    case WORD:
        w = word_index(r->words, value);
        if (w >= 0)
            *(int *)r->target = w;
        return w >= 0;
    case SECONDS:
        return read_seconds(value, r->target);
    case POSITIVE:
        return strspn(value, "0") < strlen(value) && read_seconds(value, r->target);
    case BYTES:
        return read_bytes(value, r->target);
    case NUMBER:
        return read_number(value, r->target);
    case MILLISECONDS:
        if (!read_number(value, &ms) || ms > UINT32_MAX)
            return false;
        *(uint64_t *)r->target = ms * HOCCL_MS;
        return true;
    case PERCENT:
        return read_number(value, r->target) && *(uint64_t *)r->target >= 1 && *(uint64_t *)r->target <= 100;
    case TEXT:
        return read_text(value, r->target);
    case ELSEWHERE:
        return true;
    }
    return false;
}

static const char *allowed(const struct row *r)
{
    static const char *const by_kind[] = {NULL, "whole seconds", "whole seconds, at least 1", "bytes, as 65536, 64K, 4M or 1G", "a whole number",
                                         "whole milliseconds", "percent, 1 to 100",
                                         "at most 1023 characters", NULL};
    return r->words ? r->words : by_kind[r->kind];
}

/* Number of single-letter edits between two names, small and capped: enough to find a misspelling. */
static int distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);
    if (n >= 64)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static void warn_unknown(const char *name)
{
    int best = 0;
    for (int i = 1; i < ROWS; i++)
        if (distance(name, table[i].name) < distance(name, table[best].name))
            best = i;
    if (distance(name, table[best].name) <= 2)
        hoccl_log(HOCCL_LOG_WARN, "%s is no setting of HOCCL: did you mean %s?", name, table[best].name);
    else
        hoccl_log(HOCCL_LOG_WARN, "%s is no setting of HOCCL", name);
}

/* HOCCL_EMU_* belongs to the emulated driver, which checks its own. */
static void check_names(void)
{
    for (char **e = environ; e && *e; e++) {
        char name[64];
        size_t n = strcspn(*e, "=");
        bool known = strncmp(*e, "HOCCL_", 6) || !strncmp(*e, "HOCCL_EMU_", 10) || n >= sizeof name;
        for (int i = 0; i < ROWS && !known; i++)
            known = strlen(table[i].name) == n && !strncmp(*e, table[i].name, n);
        if (known)
            continue;
        memcpy(name, *e, n);
        name[n] = 0;
        warn_unknown(name);
    }
}

HOCCL_Result hoccl_settings_load(void)
{
    for (int i = 0; i < ROWS; i++)
        read_row(&table[i], table[i].normal);
    for (int i = 0; i < ROWS; i++) {
        const char *value = getenv(table[i].name);
        if (value && *value && !read_row(&table[i], value))
            return hoccl_fail(HOCCL_ERR_ARGUMENT, "%s=%s cannot be read: it takes %s", table[i].name, value, allowed(&table[i]));
    }
    check_names();
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_settings_load_once(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool loaded;
    HOCCL_Result r = HOCCL_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!loaded)
        r = hoccl_settings_load();
    loaded = !r;
    pthread_mutex_unlock(&lock);
    return r;
}
