/* SPDX-License-Identifier: Apache-2.0 */
/* A socket that peers on other nodes connect to, on a port that HOCCL_PORTS allows. */
#ifndef HOCCL_TRANSPORT_LISTEN_H
#define HOCCL_TRANSPORT_LISTEN_H

#include "hoccl.h"

/* It does not block and is of both families where the host has IPv6. ARGUMENT (the setting), SYSTEM. */
HOCCL_Result hoccl_listen(int *fd, uint16_t *port);

#endif
