/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: the function that finds a fault says so once, with what, who and why; callers pass the result up. */
#ifndef HOCCL_BASE_ERROR_H
#define HOCCL_BASE_ERROR_H

#include "hoccl.h"

#define HOCCL_ERROR_TEXT 512

/* Set the calling thread's error text and return `result`. A trailing ": %m" uses errno as usual. */
HOCCL_Result hoccl_fail(HOCCL_Result result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Take over a text that another thread wrote (a communicator's sticky error). */
HOCCL_Result hoccl_fail_again(HOCCL_Result result, const char *text);

/* Put words in front of the text there is: "while …: …". Returns `result`. */
HOCCL_Result hoccl_fail_context(HOCCL_Result result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The calling thread's text; never NULL. */
const char *hoccl_error_text(void);

/* A zeroed block, or NULL with the error set. `what` names it for the text. */
void *hoccl_alloc(size_t bytes, const char *what);

/* The same, beginning at a cache line, for structs with lines that threads write apart from one another. */
void *hoccl_alloc_lines(size_t bytes, const char *what);

#endif
