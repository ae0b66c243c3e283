/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of HOCCL_VERBS: a table of parts, each a number within bounds. */
#include "transport/verbs_setting.h"

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNSET (-2)
#define TIMEOUT_UNIT 4096 /* ns */
#define TIMEOUT_LEAST 12  /* 17 ms: below it a busy switch looks like a dead peer */
#define TIMEOUT_MOST 20   /* 4.3 s */
#define RETRY 6           /* 7 means for ever to Soft-RoCE, as it does for rnr to all */

static const struct part {
    const char *name;
    size_t offset;
    int least, most;
} parts[] = {
    {"gid", offsetof(struct hoccl_verbs_setting, gid), 0, 65535},
    {"pkey", offsetof(struct hoccl_verbs_setting, pkey), 0, 65535},
    {"tc", offsetof(struct hoccl_verbs_setting, traffic_class), 0, 255},
    {"sl", offsetof(struct hoccl_verbs_setting, service_level), 0, 15},
    {"timeout", offsetof(struct hoccl_verbs_setting, timeout), 0, 31},
    {"retry", offsetof(struct hoccl_verbs_setting, retry), 0, 7},
    {"rnr", offsetof(struct hoccl_verbs_setting, rnr), 0, 7},
    {"mtu", offsetof(struct hoccl_verbs_setting, mtu), 256, 4096},
};

uint64_t hoccl_verbs_patience(const struct hoccl_verbs_setting *s)
{
    return s->timeout ? ((uint64_t)TIMEOUT_UNIT << s->timeout) * 4 * ((uint64_t)s->retry + 1) : UINT64_MAX;
}

static void choose_timeout(struct hoccl_verbs_setting *s, uint64_t limit)
{
    s->timeout = TIMEOUT_MOST;
    while (s->timeout > TIMEOUT_LEAST && hoccl_verbs_patience(s) > limit)
        s->timeout--;
}

static const struct part *find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i].name) == n && !strncmp(parts[i].name, name, n))
            return &parts[i];
    return NULL;
}

/* The digits of text[0 … n) as a number within bounds. */
static bool number(const char *text, size_t n, const struct part *part, int *out)
{
    char digits[8];
    if (!n || n >= sizeof digits || strspn(text, "0123456789") < n)
        return false;
    memcpy(digits, text, n);
    digits[n] = 0;
    *out = atoi(digits);
    return *out >= part->least && *out <= part->most;
}

static HOCCL_Result read_part(const char *text, size_t n, struct hoccl_verbs_setting *s)
{
    const char *equals = memchr(text, '=', n);
    const struct part *part = equals ? find(text, (size_t)(equals - text)) : NULL;
    int value;
    if (!part)
        return hoccl_fail(HOCCL_ERR_ARGUMENT,
                          "HOCCL_VERBS: \"%.*s\" is none of gid=, pkey=, tc=, sl=, timeout=, retry=, rnr=, mtu= "
                          "(joined by commas, as gid=3,timeout=18)",
                          (int)n, text);
    int *target = (int *)((char *)s + part->offset);
    if (*target != UNSET)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_VERBS: %s is given twice", part->name);
    if (!number(equals + 1, n - (size_t)(equals + 1 - text), part, &value))
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_VERBS: \"%.*s\": %s is a whole number from %d to %d", (int)n, text,
                          part->name, part->least, part->most);
    if (target == &s->mtu && (value & (value - 1)))
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_VERBS: \"%.*s\": mtu is 256, 512, 1024, 2048 or 4096", (int)n, text);
    *target = value;
    return HOCCL_SUCCESS;
}

static void set_default(int *value, int normal)
{
    if (*value == UNSET)
        *value = normal;
}

HOCCL_Result hoccl_verbs_setting_read(const char *text, uint64_t limit, struct hoccl_verbs_setting *out)
{
    struct hoccl_verbs_setting s = {UNSET, UNSET, UNSET, UNSET, UNSET, UNSET, UNSET, UNSET};
    while (text && *text) {
        size_t n = strcspn(text, ",");
        HOCCL_Result r = read_part(text, n, &s);
        if (r)
            return r;
        text += n + (text[n] == ',' && text[n + 1]);
        if (*text == ',' && !text[1])
            return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_VERBS ends in a comma");
    }
    set_default(&s.gid, -1);
    set_default(&s.pkey, 0);
    set_default(&s.traffic_class, 0);
    set_default(&s.service_level, 0);
    set_default(&s.retry, RETRY);
    set_default(&s.rnr, 6);
    set_default(&s.mtu, 0);
    if (s.timeout == UNSET)
        choose_timeout(&s, limit);
    *out = s;
    return HOCCL_SUCCESS;
}
