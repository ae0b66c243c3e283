/* SPDX-License-Identifier: Apache-2.0 */
/* What the exchange needs of sockets: this host's addresses, a listener, a connect that does not block. */
#ifndef HOCCL_TRANSPORT_VERBS_DIAL_H
#define HOCCL_TRANSPORT_VERBS_DIAL_H

#include "transport/verbs_wire.h"

/* Fill in the addresses that others may reach this host by, and the host's hash. Loopback comes last. */
void hoccl_dial_addresses(struct hoccl_verbs_card *card);

/* Listen on every address, both families; the port in *port. −1 with errno. */
int hoccl_dial_listen(uint16_t *port);

/* Begin to connect to the card's address number `i`. The socket, −1 with errno; ENOENT behind the last, EAFNOSUPPORT for one
 * that does not count here (the loopback of another host). */
int hoccl_dial_connect(const struct hoccl_verbs_card *card, uint64_t own_host, int i);

/* "10.0.0.1:4242" */
const char *hoccl_dial_text(const struct hoccl_verbs_card *card, int i, char *text, size_t bytes);

#endif
