/* SPDX-License-Identifier: Apache-2.0 */
/* hoccl-info is one JSON document: it is collected here section by section, and shown as it is or as text. */
#ifndef LAUNCHER_HOCCL_INFO_H
#define LAUNCHER_HOCCL_INFO_H

#include <jansson.h>

/* Add "driver", "topology", "gpus", "peer_access", "distances" and "nics" to the document: of this machine, or of the
 * one recorded in `file`, for which no driver is asked. What is missing is said in there; −1: the file cannot be read.
 */
int info_machine(json_t *document, const char *file);

/* Add "transports", "settings", "channels", "limits" and "launcher"; −1: a setting cannot be read. */
int info_process(json_t *document);

/* Add "rdma": the ports of RDMA devices with their addresses, and which of them HOCCL would use. */
void info_rdma(json_t *document);

/* Print the document for people. */
void info_print(const json_t *document);

/* A string, or null for NULL. JSON has no other than UTF-8, the environment has. */
static inline json_t *info_string(const char *text)
{
    json_t *string = text ? json_string(text) : json_null();
    return string ? string : json_string("(not UTF-8)");
}

#endif
