/* SPDX-License-Identifier: Apache-2.0 */
/* The process: settings, hardware channels, limits, and who has started it. */
#include "hoccl_info.h"

#include "base/error.h"
#include "base/setting.h"
#include "device/driver.h"
#include "stream/gate.h"
#include "stream/parking.h"
#include "transport/tcp_address.h"
#include "transport/transport.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

static json_t *transport(const char *name, const char *reach, bool available)
{
    return json_pack("{s:s, s:s, s:b, s:o}", "name", name, "reach", reach, "available", available, "why",
                     info_string(available ? NULL : hoccl_error_text()));
}

/* [{"name", "reach", "available", "why"}]: what could carry data here; "why" not. */
static json_t *transports(void)
{
    struct tcp_interfaces interfaces;
    json_t *all = json_array();
    json_array_append_new(all, transport("copy engines", "within a node", !hoccl_driver_load()));
    json_array_append_new(all, transport("verbs", "across nodes", hoccl_transport_has_rdma()));
    json_array_append_new(all, transport("tcp", "across nodes",
                                         !hoccl_tcp_interfaces_read(hoccl_settings.nic, NULL, &interfaces)));
    return all;
}

/* [{"name", "default", "value", "about"}] */
static json_t *settings(void)
{
    json_t *all = json_array();
    const char *name, *normal, *sentence;
    for (int i = 0; hoccl_settings_row(i, &name, &normal, &sentence); i++) {
        const char *value = getenv(name);
        json_array_append_new(all, json_pack("{s:s, s:s, s:o, s:s}", "name", name, "default", normal, "value",
                                             info_string(value && *value ? value : NULL), "about", sentence));
    }
    return all;
}

/* {"variable", "value", "channels", "gate_from", "most_parked"}: the smallest number of parked streams that puts a gate
 * in front of their waits; null: none does. */
static json_t *channels(void)
{
    struct hoccl_gate gate = {.channels = hoccl_gate_channels(), .always = hoccl_settings.gate != HOCCL_GATE_AUTO};
    gate.kind = hoccl_gate_kind(gate.channels, 1); /* as if another GPU were in reach */
    int parked = 1;
    while (parked <= HOCCL_PARKED_MAX && !hoccl_gate_needed(&gate, parked))
        parked++;
    return json_pack("{s:s, s:o, s:i, s:o, s:i}", "variable", "CUDA_DEVICE_MAX_CONNECTIONS", "value",
                     info_string(getenv("CUDA_DEVICE_MAX_CONNECTIONS")), "channels", gate.channels, "gate_from",
                     parked <= HOCCL_PARKED_MAX ? json_integer(parked) : json_null(), "most_parked", HOCCL_PARKED_MAX);
}

/* {"now", "most"}; null: unlimited. */
static json_t *limit(int resource)
{
    struct rlimit l = {RLIM_INFINITY, RLIM_INFINITY};
    getrlimit(resource, &l);
    return json_pack("{s:o, s:o}", "now",
                     l.rlim_cur == RLIM_INFINITY ? json_null() : json_integer((json_int_t)l.rlim_cur), "most",
                     l.rlim_max == RLIM_INFINITY ? json_null() : json_integer((json_int_t)l.rlim_max));
}

/* /dev/shm is shown because other libraries need it; HOCCL does not. */
static json_t *limits(void)
{
    struct statvfs shm;
    json_t *bytes = statvfs("/dev/shm", &shm) ? json_null() : json_integer((json_int_t)(shm.f_blocks * shm.f_frsize));
    return json_pack("{s:o, s:o, s:{s:o, s:b}}", "memlock", limit(RLIMIT_MEMLOCK), "open_files", limit(RLIMIT_NOFILE),
                     "dev_shm", "bytes", bytes, "needed", 0);
}

/* {"name", "rank", "ranks", "hint"}: the same evidence as HOCCL_Init goes by. */
static json_t *launcher(void)
{
    const char *tasks = getenv("SLURM_NTASKS"), *processes = getenv("PMI_SIZE"), *ranks = getenv("OMPI_COMM_WORLD_SIZE");
    const char *name = "none", *rank = NULL,
               *hint = "HOCCL_Init makes a world of one: start with mpirun or srun --mpi=pmix";
    if (getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK")) {
        name = "PMIx";
        rank = getenv("PMIX_RANK");
        ranks = ranks ? ranks : tasks;
        hint = NULL;
    } else if (tasks && atoi(tasks) > 1 && getenv("SLURM_PROCID")) {
        name = "Slurm without PMIx";
        rank = getenv("SLURM_PROCID");
        ranks = tasks;
        hint = "HOCCL_Init will fail, as these tasks cannot find one another: use srun --mpi=pmix (srun --mpi=list "
               "shows what "
               "this Slurm has)";
    } else if (processes && atoi(processes) > 1 && getenv("PMI_RANK")) {
        name = "PMI without PMIx";
        rank = getenv("PMI_RANK");
        ranks = processes;
        hint = "HOCCL_Init will fail, as these processes cannot find one another: use mpirun of Open MPI or srun --mpi=pmix";
    } else if (getenv("RANK") && getenv("WORLD_SIZE") && getenv("MASTER_ADDR")) {
        name = "torchrun";
        rank = getenv("RANK");
        ranks = getenv("WORLD_SIZE");
        hint = "HOCCL_Init makes a world of one under it: use HOCCL_GetUniqueId and HOCCL_CommInitRank";
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "name", name, "rank", rank ? json_integer(atoi(rank)) : json_null(),
                     "ranks", rank && ranks ? json_integer(atoi(ranks)) : json_null(), "hint", info_string(hint));
}

int info_process(json_t *document)
{
    HOCCL_Result r = hoccl_settings_load();
    json_object_set_new(document, "settings_error", info_string(r ? hoccl_error_text() : NULL));
    json_object_set_new(document, "settings", settings());
    json_object_set_new(document, "transports", transports());
    json_object_set_new(document, "channels", channels());
    json_object_set_new(document, "limits", limits());
    json_object_set_new(document, "launcher", launcher());
    return r ? -1 : 0;
}
