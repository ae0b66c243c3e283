/* SPDX-License-Identifier: Apache-2.0 */
/* An application of NCCL often prints ncclGetErrorString only, so the text also goes to standard error where NCCL's own
 * would: with NCCL_DEBUG=WARN or more, and with HOCCL_DEBUG=info. */
#include "nccl/error.h"

#include "nccl/export.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static __thread char last[SHIM_TEXT];

static bool one_of(const char *setting, const char *const *values)
{
    const char *s = getenv(setting);
    while (s && *values)
        if (!strcasecmp(s, *values++))
            return true;
    return false;
}

static void print(ncclResult_t result)
{
    static const char *const nccl[] = {"WARN", "INFO", "ABORT", "TRACE", NULL}, *const hoccl[] = {"info", "trace", NULL};
    char line[SHIM_TEXT + 128];
    if (!one_of("NCCL_DEBUG", nccl) && !one_of("HOCCL_DEBUG", hoccl))
        return;
    int n = snprintf(line, sizeof line, "HOCCL pid %d: warning: %s: %s\n", (int)getpid(), pncclGetErrorString(result), last);
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

ncclResult_t shim_fail(ncclResult_t result, const char *format, ...)
{
    char text[SHIM_TEXT]; /* an argument may be the last text */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bool again = !strcmp(last, text); /* a watchdog that asks every millisecond */
    memcpy(last, text, sizeof last);
    if (!again)
        print(result);
    return result;
}

ncclResult_t shim_translate(HOCCL_Result result)
{
    switch (result) {
    case HOCCL_SUCCESS:
        return ncclSuccess;
    case HOCCL_ERR_ARGUMENT:
        return ncclInvalidArgument;
    case HOCCL_ERR_USAGE:
    case HOCCL_ERR_UNSUPPORTED:
    case HOCCL_ERR_MISMATCH:
        return ncclInvalidUsage;
    case HOCCL_ERR_MEMORY:
    case HOCCL_ERR_SYSTEM:
        return ncclSystemError;
    case HOCCL_ERR_DEVICE:
        return ncclUnhandledCudaError;
    case HOCCL_ERR_BOOTSTRAP:
    case HOCCL_ERR_PEER:
    case HOCCL_ERR_TIMEOUT:
        return ncclRemoteError;
    case HOCCL_ERR_INTERNAL:
        return ncclInternalError;
    }
    return ncclInternalError;
}

ncclResult_t shim_result(HOCCL_Result result, const char *call)
{
    if (!result)
        return ncclSuccess;
    return shim_fail(shim_translate(result), "%s: %s", call, HOCCL_GetLastError());
}

const char *shim_text(void)
{
    return last;
}

const char *pncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",         "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage",        "remote error",           "in progress"};
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}
NCCL_EXPORT(GetErrorString);
