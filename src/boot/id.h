/* SPDX-License-Identifier: Apache-2.0 */
/* What stands in a HOCCL_UniqueId: where the process that made it listens, and what to say there. */
#ifndef HOCCL_BOOT_ID_H
#define HOCCL_BOOT_ID_H

#include "hoccl.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct hoccl_id {
    char magic[8];
    uint8_t secret[16]; /* who says it may take part */
    uint8_t proof[8];   /* what the listener answers with: the right one, not a stranger at the same address */
    uint64_t host;      /* hash of the boot id: is this the rank's own host? */
    int32_t pid;
    uint16_t port;
    uint8_t addresses; /* entries in the list */
    uint8_t reserved;
    uint8_t list[72]; /* each: 4 or 6, then the address's 4 or 16 bytes; loopback last */
    uint64_t check;   /* hash of all above: a truncated or garbled id is noticed */
};

_Static_assert(sizeof(struct hoccl_id) == sizeof(HOCCL_UniqueId), "an id fills its public type");

/* Fill everything in but the port: random numbers, this host's addresses. SYSTEM if there is no randomness. */
HOCCL_Result hoccl_id_make(struct hoccl_id *id);

/* The port is known: the id is complete. */
void hoccl_id_seal(struct hoccl_id *id, uint16_t port, HOCCL_UniqueId *out);

/* ARGUMENT if it is not what hoccl_id_seal has made. */
HOCCL_Result hoccl_id_read(const HOCCL_UniqueId *in, struct hoccl_id *id);

/* Was it made on this host? */
bool hoccl_id_is_near(const struct hoccl_id *id);

/* The address number `i` to connect to; false behind the last. */
bool hoccl_id_address(const struct hoccl_id *id, int i, struct sockaddr_storage *address, socklen_t *bytes);

/* Is this a loopback address? */
bool hoccl_address_is_loopback(const struct sockaddr_storage *address);

/* "10.0.0.1:4242"; returns text. */
const char *hoccl_address_text(const struct sockaddr_storage *address, char *text, size_t bytes);

#endif
