/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on standard error, at or above the level of HOCCL_DEBUG, each with the rank and node it comes from. */
#ifndef HOCCL_BASE_LOG_H
#define HOCCL_BASE_LOG_H

enum hoccl_log_level { HOCCL_LOG_ERROR, HOCCL_LOG_WARN, HOCCL_LOG_INFO, HOCCL_LOG_TRACE };

/* Whose lines follow, once the rank is known. A process that is several ranks names itself by its number instead. */
void hoccl_log_identity(int rank, const char *node);

void hoccl_log(enum hoccl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
