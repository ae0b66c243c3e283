/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank of a job has to come to the same answer; who does not is told so when it joins (a card names its transport). */
#include "transport/transport.h"

#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "transport/port.h"

#include <stdlib.h>

bool hoccl_transport_has_rdma(void)
{
    struct hoccl_port_view *views = NULL;
    int n = hoccl_port_list(&views);
    bool found = n > 0 && hoccl_port_choose(views, n, hoccl_settings.nic, NULL) >= 0;
    free(views);
    return found;
}

const struct hoccl_transport *hoccl_transport_choose(void)
{
    switch (hoccl_settings.net) {
    case HOCCL_NET_AUTO:
        if (hoccl_transport_has_rdma())
            return &hoccl_transport_verbs;
        hoccl_log(HOCCL_LOG_INFO, "TCP between nodes: %s", hoccl_error_text());
        return &hoccl_transport_tcp;
    case HOCCL_NET_TCP:
        return &hoccl_transport_tcp;
    case HOCCL_NET_VERBS:
        return hoccl_transport_has_rdma() ? &hoccl_transport_verbs : NULL;
    }
    return NULL;
}
