/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the last error, one a thread. */
#include "base/error.h"

#include "base/atomic.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread char last[HOCCL_ERROR_TEXT];

HOCCL_Result hoccl_fail(HOCCL_Result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last, sizeof last, format, args);
    va_end(args);
    return result;
}

HOCCL_Result hoccl_fail_again(HOCCL_Result result, const char *text)
{
    return hoccl_fail(result, "%s", text);
}

HOCCL_Result hoccl_fail_context(HOCCL_Result result, const char *format, ...)
{
    char old[HOCCL_ERROR_TEXT];
    memcpy(old, last, sizeof old);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(last, sizeof last, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof last)
        snprintf(last + n, sizeof last - (size_t)n, ": %s", old);
    return result;
}

const char *hoccl_error_text(void)
{
    return last;
}

void *hoccl_alloc(size_t bytes, const char *what)
{
    void *p = calloc(1, bytes);
    if (!p)
        hoccl_fail(HOCCL_ERR_MEMORY, "no host memory for %s (%zu bytes)", what, bytes);
    return p;
}

void *hoccl_alloc_lines(size_t bytes, const char *what)
{
    size_t whole = (bytes + HOCCL_CACHE_LINE - 1) / HOCCL_CACHE_LINE * HOCCL_CACHE_LINE;
    void *p = aligned_alloc(HOCCL_CACHE_LINE, whole);
    if (p)
        memset(p, 0, whole);
    else
        hoccl_fail(HOCCL_ERR_MEMORY, "no host memory for %s (%zu bytes)", what, bytes);
    return p;
}
