/* SPDX-License-Identifier: Apache-2.0 */
/* See config.h. */
#include "nccl/config.h"

#include <string.h>

/* A field, and the values that NCCL takes for it. */
struct field {
    const char *name;
    size_t offset;
    int least, most;
};

#define FIELD(name, least, most) {#name, offsetof(ncclConfig_t, name), least, most}

static const struct field fields[] = {
    FIELD(blocking, 0, 1),       FIELD(cgaClusterSize, 0, INT_MAX), FIELD(minCTAs, 1, INT_MAX),
    FIELD(maxCTAs, 1, INT_MAX),  FIELD(splitShare, 0, 1),           FIELD(collnetEnable, 0, 1),
    FIELD(CTAPolicy, 0, 3),      FIELD(shrinkShare, 0, 1),          FIELD(nvlsCTAs, 1, INT_MAX),
    FIELD(nChannelsPerNetPeer, 1, INT_MAX), FIELD(nvlinkCentricSched, 0, 1),
};

/* A shorter structure of an older NCCL has no such field. */
static int value(const ncclConfig_t *config, const struct field *f)
{
    int v = NCCL_CONFIG_UNDEF_INT;
    if (f->offset + sizeof v <= config->size)
        memcpy(&v, (const char *)config + f->offset, sizeof v);
    return v;
}

ncclResult_t shim_config_read(const ncclConfig_t *config, bool inherited, const char *call, bool *blocking)
{
    *blocking = inherited;
    if (!config)
        return ncclSuccess;
    if (config->magic != NCCL_CONFIG_MAGIC)
        return shim_fail(ncclInvalidArgument, "%s: the configuration was not set with NCCL_CONFIG_INITIALIZER", call);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *f = &fields[i];
        int v = value(config, f);
        if (v != NCCL_CONFIG_UNDEF_INT && (v < f->least || v > f->most))
            return shim_fail(ncclInvalidArgument, "%s: %s is %d in the configuration: it can be %d to %d", call, f->name, v, f->least,
                             f->most);
    }
    int asked = value(config, &fields[0]), least = value(config, &fields[2]), most = value(config, &fields[3]);
    if (least != NCCL_CONFIG_UNDEF_INT && most != NCCL_CONFIG_UNDEF_INT && least > most)
        return shim_fail(ncclInvalidArgument, "%s: minCTAs %d is more than maxCTAs %d in the configuration", call, least, most);
    if (asked != NCCL_CONFIG_UNDEF_INT)
        *blocking = asked != 0;
    return ncclSuccess;
}
