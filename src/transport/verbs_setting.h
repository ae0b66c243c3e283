/* SPDX-License-Identifier: Apache-2.0 */
/* HOCCL_VERBS: how queue pairs are to be made, "gid=3,pkey=0,tc=106,sl=3,timeout=18,retry=6,rnr=6,mtu=4096", each part
 * optional. Pure functions. */
#ifndef HOCCL_TRANSPORT_VERBS_SETTING_H
#define HOCCL_TRANSPORT_VERBS_SETTING_H

#include "hoccl.h"

struct hoccl_verbs_setting {
    int gid;            /* index in the port's table; −1: chosen by type and subnet */
    int pkey;           /* index in the port's table */
    int traffic_class;  /* of packets with a global header: all of RoCE */
    int service_level;
    int timeout;        /* the sender waits 4.096 µs × 2^timeout for an acknowledgement, 0: for ever */
    int retry;          /* and sends so many times more (Soft-RoCE takes 7 as without end) */
    int rnr;            /* retries where the receiver has no room; 7: without end. HOCCL never needs one */
    int mtu;            /* bytes; 0: what the ports have */
};

/* Read `text` ("" or NULL: all as by default). The default of `timeout` is the longest one by which a peer that does not answer
 * is given up within `limit` ns. ARGUMENT with the part that is wrong and what is allowed; *out unchanged then. */
HOCCL_Result hoccl_verbs_setting_read(const char *text, uint64_t limit, struct hoccl_verbs_setting *out);

/* The longest time until a queue pair reports that its peer does not answer: cards may wait four times `timeout` each time. */
uint64_t hoccl_verbs_patience(const struct hoccl_verbs_setting *setting);

#endif
