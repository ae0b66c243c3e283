/* SPDX-License-Identifier: Apache-2.0 */
/* One write(2) a line, so that lines of several ranks do not mix. */
#include "base/log.h"

#include "base/atomic.h"
#include "base/setting.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char identity[96];
static int identity_set;

void hoccl_log_identity(int rank, const char *node)
{
    if (!hoccl_take((uint32_t *)&identity_set, 0, 1))
        return;
    snprintf(identity, sizeof identity, " rank %d on %s", rank, node);
    hoccl_publish(&identity_set, 2);
}

void hoccl_log(enum hoccl_log_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warning", "info", "trace"};
    char line[1024];
    if ((int)level > hoccl_settings.debug)
        return;
    int n = snprintf(line, sizeof line, "HOCCL%s: %s: ", hoccl_observe(&identity_set) == 2 ? identity : "", names[level]);
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    strcat(line, "\n");
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        return;
}
