/* SPDX-License-Identifier: Apache-2.0 */
/* Which NIC a GPU asks for and whether its symmetric GPU does for its slots, on machines of test/topo-data, with emulated GPUs at
 * their PCI addresses and a transport that only says what it has. The driver reads its settings once: each case is a process. */
#include "unit.h"

#include "base/setting.h"
#include "p2p/place.h"

#include <sys/wait.h>

struct expected {
    const char *nic, *how; /* "" none */
    int other;
    const char *why; /* part of it */
};

static const struct scenario {
    const char *name, *file, *pci;  /* of test/topo-data, HOCCL_EMU_PCI */
    const char *variable, *value;   /* one more */
    const char *nics;               /* that the transport has */
    bool takes_gpu, flushes;
    int gpus;
    struct expected gpu[4];         /* by ordinal, which is its turn too */
} scenarios[] = {
    {"two GPUs and a NIC below a switch", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0,0000:9a:00.0,0000:9b:00.0", NULL, NULL, "mlx5_0,mlx5_1", true, true, 4,
     {{"mlx5_0", "same switch", 1, ""}, {"mlx5_0", "same switch", 0, ""}, {"mlx5_1", "same switch", 3, ""}, {"mlx5_1", "same switch", 2, ""}}},
    {"one NIC is down, or HOCCL_NIC forbids it", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0,0000:9a:00.0,0000:9b:00.0", NULL, NULL, "mlx5_1", true, true, 2,
     {{"mlx5_1", "across the system", 1, ""}, {"mlx5_1", "across the system", 0, ""}}},
    {"ordinals in another order", "two-gpus-a-nic", "0000:9b:00.0,0000:19:00.0,0000:9a:00.0,0000:1a:00.0", NULL, NULL, "mlx5_0,mlx5_1", true, true, 4,
     {{"mlx5_1", "same switch", 2, ""}, {"mlx5_0", "same switch", 3, ""}, {"mlx5_1", "same switch", 0, ""}, {"mlx5_0", "same switch", 1, ""}}},
    {"a NIC for each GPU", "nic-per-gpu", "0000:13:00.0,0000:23:00.0,0000:84:00.0,0000:94:00.0", NULL, NULL, "mlx5_0,mlx5_1,mlx5_2,mlx5_3", true, true, 4,
     {{"mlx5_0", "same switch", -1, "no other GPU"}, {"mlx5_1", "same switch", -1, "no other GPU"}, {"mlx5_2", "same switch", -1, "no other GPU"}, {"mlx5_3", "same switch", -1, "no other GPU"}}},
    {"no GPU of the topology", "two-gpus-a-nic", "0000:71:00.0,0000:72:00.0,0000:73:00.0", NULL, NULL, "mlx5_0,mlx5_1", true, true, 3,
     {{"mlx5_0", "spread over ranks", -1, "unknown"}, {"mlx5_1", "spread over ranks", -1, "unknown"}, {"mlx5_0", "spread over ranks", -1, "unknown"}}},
    {"no NIC of the topology", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0", NULL, NULL, "rxe0,rxe1", true, true, 2,
     {{"rxe0", "spread over ranks", 1, ""}, {"rxe1", "spread over ranks", 0, ""}}},
    {"a topology that cannot be read", "broken", "0000:19:00.0,0000:1a:00.0", NULL, NULL, "mlx5_0,mlx5_1", true, true, 2,
     {{"mlx5_0", "spread over ranks", -1, "unknown"}, {"mlx5_1", "spread over ranks", -1, "HOCCL_TOPO_FILE"}}},
    {"the symmetric GPU is hidden", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0,0000:9a:00.0,0000:9b:00.0", "CUDA_VISIBLE_DEVICES", "0,2,3", "mlx5_0,mlx5_1", true, true, 3,
     {{"mlx5_0", "same switch", -1, "1a:00.0 is hidden"}, {"mlx5_1", "same switch", 2, ""}, {"mlx5_1", "same switch", 1, ""}}},
    {"no access between GPUs", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0", "HOCCL_EMU_P2P", "0", "mlx5_0,mlx5_1", true, true, 1,
     {{"mlx5_0", "same switch", -1, "GPU 0 cannot access GPU 1"}}},
    {"no GPUDirect", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0", "HOCCL_EMU_RDMA", "off,pcie", "mlx5_0,mlx5_1", true, true, 2,
     {{"mlx5_0", "same switch", 1, ""}, {"mlx5_0", "same switch", -1, "GPU 0 has no GPUDirect RDMA"}}},
    {"a transport that cannot flush", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0", "HOCCL_EMU_RDMA_ORDER", "all,owner", "mlx5_0,mlx5_1", true, false, 2,
     {{"mlx5_0", "same switch", -1, "GPU 1 must be flushed"}, {"mlx5_0", "same switch", 0, ""}}},
    {"a transport without NICs that takes no memory of GPUs", "two-gpus-a-nic", "0000:19:00.0,0000:1a:00.0", NULL, NULL, "", false, false, 1,
     {{"", "", -1, "takes no memory of GPUs"}}},
};

static const struct scenario *now;

static int nics(char (*names)[HOCCL_NIC_NAME], int most)
{
    int n = 0;
    for (const char *s = now->nics; *s && n < most; n++) {
        size_t length = strcspn(s, ",");
        snprintf(names[n], HOCCL_NIC_NAME, "%.*s", (int)length, s);
        s += length + (s[length] == ',');
    }
    return n;
}

static bool no_flush(struct hoccl_endpoint *e, const struct hoccl_region *region, size_t offset, uint64_t tag)
{
    (void)e;
    (void)region;
    (void)offset;
    (void)tag;
    return false;
}

static bool right(int gpu, const struct hoccl_place *p, const struct expected *e)
{
    bool good = !strcmp(p->nic, e->nic) && strstr(p->how, e->how) && p->other == e->other && strstr(p->why, e->why) && !*e->why == !*p->why;
    if (!good)
        printf("%s, GPU %d: NIC \"%s\" (%s), other GPU %d, \"%s\"\n", now->name, gpu, p->nic, p->how, p->other, p->why);
    return good;
}

/* In a process of its own: 0 if all is as expected. */
static int run(void)
{
    const char *source = getenv("top_srcdir");
    char file[4096];
    snprintf(file, sizeof file, "%s/test/topo-data/%s.xml", source ? source : ".", now->file);
    setenv("HOCCL_TOPO_FILE", file, 1);
    setenv("HOCCL_DEVICE", "emu", 1);
    setenv("HOCCL_EMU_DEVICES", "4", 1);
    setenv("HOCCL_EMU_PCI", now->pci, 1);
    if (now->variable)
        setenv(now->variable, now->value, 1);
    if (hoccl_settings_load() || hoccl_driver_load())
        return 2;
    struct hoccl_transport t = {.name = "fake", .takes_gpu = now->takes_gpu, .nics = *now->nics ? nics : NULL,
                                .flush = now->flushes ? no_flush : NULL};
    for (int i = 0; i < now->gpus; i++) {
        struct hoccl_device d = {.ordinal = i};
        struct hoccl_place p;
        if (hoccl_driver.DeviceGetPCIBusId(d.pci, sizeof d.pci, i))
            return 3;
        hoccl_place_find(&t, &d, i, &p);
        if (!right(i, &p, &now->gpu[i]))
            return 1;
    }
    fflush(stdout);
    return 0;
}

static void test_places(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        int status;
        now = &scenarios[i];
        fflush(stdout);
        pid_t pid = fork();
        if (!pid)
            exit(run());
        waitpid(pid, &status, 0);
        if (status)
            fail_msg("%s: status %x", now->name, (unsigned)status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
