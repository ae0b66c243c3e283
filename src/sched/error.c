/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's errors: a code and one line of text, written where the fault is found. */
#include "sched/error.h"

#include <stdarg.h>
#include <stdio.h>

int hoccl_plan_fail(struct hoccl_plan_error *error, int status, const char *format, ...)
{
	va_list arguments;

	if (!error)
		return status;
	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	return status;
}
