/* SPDX-License-Identifier: Apache-2.0 */
/* One write(2) a line, so that lines of several ranks do not mix. */
#include "base/log.h"

#include "base/atomic.h"
#include "base/setting.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char node_name[64];
static uint32_t named; /* 0 nobody yet, 1 being written, 2 node_name is there */
static int32_t only_rank = -1; /* SEVERAL: lines cannot tell whose they are */

enum { SEVERAL = -2 };

void hoccl_log_identity(int rank, const char *node)
{
    int32_t expected = -1;
    if (!__atomic_compare_exchange_n(&only_rank, &expected, rank, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) && expected != rank)
        hoccl_publish(&only_rank, SEVERAL);
    if (!hoccl_take(&named, 0, 1))
        return;
    snprintf(node_name, sizeof node_name, "%s", node);
    hoccl_publish(&named, 2);
}

static int identity(char *text, size_t bytes)
{
    int32_t rank = hoccl_observe(&only_rank);
    if (hoccl_observe(&named) != 2)
        return snprintf(text, bytes, "HOCCL");
    if (rank == SEVERAL)
        return snprintf(text, bytes, "HOCCL pid %d on %s", (int)getpid(), node_name);
    return snprintf(text, bytes, "HOCCL rank %d on %s", rank, node_name);
}

void hoccl_log(enum hoccl_log_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warning", "info", "trace"};
    char line[1024];
    if ((int)level > hoccl_settings.debug)
        return;
    int n = identity(line, sizeof line);
    n += snprintf(line + n, sizeof line - (size_t)n, ": %s: ", names[level]);
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    strcat(line, "\n");
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        return;
}
