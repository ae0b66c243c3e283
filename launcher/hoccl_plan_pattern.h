/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_PLAN_PATTERN_H
#define HOCCL_PLAN_PATTERN_H

#include "sched/layout.h"

/* Named traffic patterns, for the tool, its benchmark and the tests. */
struct hoccl_pattern {
	const char *name;
	uint64_t line;		/* bytes of the longest row or column */
	uint64_t seed;
	double skew;		/* zipf: exponent */
	unsigned int percent;	/* sparse: entries that are not zero */
	unsigned int factor;	/* hotrow, hotcol: how much hotter */
	int block;		/* block: size of a block; 0 = the first node's */
	int zero;		/* rows and columns without traffic */
};

/* Defaults of a pattern. */
void hoccl_pattern_init(struct hoccl_pattern *pattern, const char *name);

/* Parses "name,key=value,…" (keys: line, seed, skew, percent, factor, block, zero); `text` is changed and kept. */
int hoccl_pattern_parse(struct hoccl_pattern *pattern, char *text, struct hoccl_plan_error *error);

/* Fills C. The same pattern, layout and seed give the same matrix. */
int hoccl_pattern_fill(const struct hoccl_pattern *pattern, const struct hoccl_layout *layout, uint64_t *c,
		       struct hoccl_plan_error *error);

/* The names, NULL at the end. */
extern const char *const hoccl_pattern_names[];

/* "4GiB", "64M", "1000": bytes with K, M, G, T (powers of 10) or Ki, Mi, Gi, Ti; false if it is none. */
bool hoccl_bytes_parse(const char *text, uint64_t *bytes);

#endif
