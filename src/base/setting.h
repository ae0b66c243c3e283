/* SPDX-License-Identifier: Apache-2.0 */
/* The settings: environment variables HOCCL_*, read once, all in one table (setting.c). */
#ifndef HOCCL_BASE_SETTING_H
#define HOCCL_BASE_SETTING_H

#include "hoccl.h"

enum hoccl_gate_choice { HOCCL_GATE_AUTO, HOCCL_GATE_NONE, HOCCL_GATE_PUSH, HOCCL_GATE_H2D, HOCCL_GATE_COMPUTE };

/* Ways to break the executor on purpose, so that a test can show that it would notice. */
enum hoccl_break { HOCCL_BREAK_NOTHING, HOCCL_BREAK_LOCAL_COPY, HOCCL_BREAK_EARLY_FLAG, HOCCL_BREAK_EARLY_REUSE, HOCCL_BREAK_NO_FLUSH,
                   HOCCL_BREAK_NO_NUDGE, HOCCL_BREAK_NO_ROTATION, HOCCL_BREAK_NO_EAGER };

enum hoccl_net_choice { HOCCL_NET_AUTO, HOCCL_NET_VERBS, HOCCL_NET_TCP };

#define HOCCL_SETTING_TEXT 1024 /* longest text, the final zero included */

struct hoccl_settings {
    int debug;                  /* HOCCL_DEBUG: enum hoccl_log_level */
    uint64_t init_timeout;      /* HOCCL_INIT_TIMEOUT, ns here, seconds outside; so all times */
    uint64_t timeout;           /* HOCCL_TIMEOUT */
    uint64_t wait_timeout;      /* HOCCL_WAIT_TIMEOUT, 0: never */
    uint64_t chunk;             /* HOCCL_CHUNK, bytes */
    uint64_t share;             /* HOCCL_SHARE, percent */
    uint64_t pause;             /* HOCCL_PAUSE, ns here, ms outside */
    int detour;                 /* HOCCL_DETOUR: 1 if on */
    int blocking;               /* HOCCL_BLOCKING: 1 if on */
    enum hoccl_gate_choice gate;      /* HOCCL_GATE */
    char topo_file[HOCCL_SETTING_TEXT]; /* HOCCL_TOPO_FILE */
    enum hoccl_net_choice net;  /* HOCCL_NET */
    char nic[HOCCL_SETTING_TEXT];   /* HOCCL_NIC */
    char ports[HOCCL_SETTING_TEXT]; /* HOCCL_PORTS */
    uint64_t lanes;             /* HOCCL_LANES, 0: chosen */
    uint64_t connect_max;       /* HOCCL_CONNECT_MAX, ranks */
    char verbs[HOCCL_SETTING_TEXT];     /* HOCCL_VERBS: read by transport/verbs_setting.c */
    uint64_t first_sequence;    /* HOCCL_TEST_SEQUENCE */
    enum hoccl_break test_break; /* HOCCL_TEST_BREAK */
    char test_node[HOCCL_SETTING_TEXT]; /* HOCCL_TEST_NODE */
};

extern struct hoccl_settings hoccl_settings;

/* Read the environment; later calls read it anew. A value that cannot be read is HOCCL_ERR_ARGUMENT with the name, the
 * value and what is allowed; an unknown HOCCL_* name is a warning with the nearest known one. */
HOCCL_Result hoccl_settings_load(void);

/* The same for the calls that make communicators, from any thread: once a process, then constant. */
HOCCL_Result hoccl_settings_load_once(void);

/* The table, for tools: row `i` as name, default and sentence; false behind the last. */
int hoccl_settings_row(int i, const char **name, const char **value, const char **sentence);

#endif
