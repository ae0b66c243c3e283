/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"

#include "base/error.h"
#include "base/setting.h"

const struct hoccl_transport *hoccl_transport_choose(void)
{
    switch (hoccl_settings.net) {
    case HOCCL_NET_AUTO:
    case HOCCL_NET_TCP:
        return &hoccl_transport_tcp;
    case HOCCL_NET_VERBS:
        hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_NET=verbs: RDMA is not in this build of HOCCL; HOCCL_NET=tcp is");
        return NULL;
    }
    return NULL;
}
