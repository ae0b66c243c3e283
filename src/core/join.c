/* SPDX-License-Identifier: Apache-2.0 */
/* Between the calls and the exchange over TCP. */
#include "core/join.h"

#include "base/setting.h"
#include "boot/tcp.h"

HOCCL_Result hoccl_join_make_id(HOCCL_UniqueId *id)
{
    return hoccl_root_open(hoccl_settings.init_timeout, id);
}

HOCCL_Result hoccl_join_check_id(const HOCCL_UniqueId *id)
{
    struct hoccl_id read;
    return hoccl_id_read(id, &read);
}

HOCCL_Result hoccl_join(const HOCCL_UniqueId *id, int size, int rank, struct hoccl_comm **comm)
{
    struct hoccl_boot boot;
    HOCCL_Result r = hoccl_boot_tcp_open(id, rank, size, &boot);
    if (r)
        return r;
    r = hoccl_comm_open(&boot, comm);
    boot.ops->close(&boot);
    return r;
}
