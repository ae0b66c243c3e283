/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_ERROR_H
#define HOCCL_SCHED_ERROR_H

/* Every function of the planner returns 0 or one of these; the text says what, which entry and why. */
enum hoccl_plan_status {
	HOCCL_PLAN_OK = 0,
	HOCCL_PLAN_ARGUMENT = -1,
	HOCCL_PLAN_OVERFLOW = -2,
	HOCCL_PLAN_MEMORY = -3,
};

struct hoccl_plan_error {
	char text[256];
};

/* Writes the text and returns `status`, so that a caller can `return hoccl_plan_fail(...)`. `error` may be NULL. */
int hoccl_plan_fail(struct hoccl_plan_error *error, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
