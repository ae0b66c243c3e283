/* SPDX-License-Identifier: Apache-2.0 */
/* Topology: every answer on the small machines of test/topo-data, whose first comment says what they are. */
#include "topo/topo.h"

#include "base/error.h"
#include "base/setting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The path of a machine in test/topo-data; valid until the next call. */
static const char *machine(const char *name)
{
    static char path[4096];
    const char *source = getenv("top_srcdir");
    snprintf(path, sizeof path, "%s/test/topo-data/%s.xml", source ? source : ".", name);
    return path;
}

/* Open a machine for the GPUs with these PCI names; NULL ends the list, none: all of the machine. */
static struct hoccl_topo *open_for(const char *name, const char *const *gpus)
{
    struct hoccl_pci pci[16];
    struct hoccl_topo *topo = NULL;
    int n = 0;
    for (; gpus && gpus[n]; n++)
        assert_true(hoccl_pci_parse(gpus[n], &pci[n]));
    if (hoccl_topo_open(machine(name), pci, n, &topo))
        fail_msg("%s", hoccl_error_text());
    return topo;
}

static struct hoccl_topo *open_all(const char *name)
{
    return open_for(name, NULL);
}

static void check_symmetric(const struct hoccl_topo *topo, int gpus, const int *symmetric)
{
    assert_int_equal(topo->gpus, gpus);
    for (int i = 0; i < gpus; i++) {
        assert_int_equal(topo->gpu[i].symmetric, symmetric[i]);
        if (symmetric[i] < 0)
            continue;
        assert_int_equal(topo->gpu[symmetric[i]].symmetric, i);
        assert_int_equal(hoccl_topo_gpu_gpu(topo, i, symmetric[i]), HOCCL_TOPO_SAME_SWITCH);
    }
}

/* Each GPU's NIC by name, NULL for none. */
static void check_nics(const struct hoccl_topo *topo, const char *const *name)
{
    for (int i = 0; i < topo->gpus; i++) {
        if (!name[i])
            assert_int_equal(topo->gpu[i].nic, -1);
        else
            assert_string_equal(topo->nic[topo->gpu[i].nic].name, name[i]);
    }
}

static void two_gpus_and_a_nic_below_a_switch(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("two-gpus-a-nic");
    check_symmetric(t, 4, (const int[]){1, 0, 3, 2});
    check_nics(t, (const char *const[]){"mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"});
    assert_int_equal(t->nics, 2);
    assert_int_equal(t->nic[0].ports, 2);
    assert_int_equal(t->nic[0].active, 1);
    assert_int_equal(t->nic[0].gpus, 2);
    assert_int_equal(t->nic[1].active, 2);
    assert_true(t->nic[0].on_pci);
    assert_int_equal(t->nic[0].pci.bus, 0x1b);
    assert_int_equal(hoccl_topo_gpu_nic(t, 0, 0), HOCCL_TOPO_SAME_SWITCH);
    assert_int_equal(hoccl_topo_gpu_nic(t, 0, 1), HOCCL_TOPO_SYSTEM);
    assert_int_equal(hoccl_topo_gpu_gpu(t, 1, 2), HOCCL_TOPO_SYSTEM);
    assert_int_equal(t->gpu[0].numa, 0);
    assert_int_equal(t->gpu[3].numa, 1);
    assert_string_equal(t->gpu[3].cpus, "2-3");
    assert_false(t->flat);
    assert_int_equal(t->others, 0);
    hoccl_topo_close(t);
}

static void a_nic_for_each_gpu(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("nic-per-gpu");
    check_symmetric(t, 4, (const int[]){-1, -1, -1, -1});
    check_nics(t, (const char *const[]){"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"});
    for (int i = 0; i < 4; i++)
        assert_int_equal(hoccl_topo_gpu_nic(t, i, t->gpu[i].nic), HOCCL_TOPO_SAME_SWITCH);
    assert_int_equal(hoccl_topo_gpu_gpu(t, 0, 1), HOCCL_TOPO_SAME_NUMA);
    assert_int_equal(hoccl_topo_gpu_gpu(t, 0, 2), HOCCL_TOPO_SYSTEM);
    hoccl_topo_close(t);
}

/* GPUs are paired below the innermost switch first; an NVSwitch is no GPU. */
static void switches_behind_switches_without_nic(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("no-nic");
    check_symmetric(t, 8, (const int[]){1, 0, 3, 2, 5, 4, 7, 6});
    check_nics(t, (const char *const[]){NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL});
    assert_int_equal(hoccl_topo_gpu_gpu(t, 0, 2), HOCCL_TOPO_SAME_SWITCH);
    assert_int_equal(t->nics, 0);
    assert_false(t->flat);
    hoccl_topo_close(t);
}

/* Inner switches come before outer ones in whatever order the GPUs are named. */
static void pairs_in_another_order(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_for("no-nic", (const char *const[]){"25:00.0", "29:00.0", "26:00.0", "2a:00.0", NULL});
    check_symmetric(t, 4, (const int[]){2, 3, 0, 1});
    hoccl_topo_close(t);
}

/* Where the inner switches have one GPU of the job each, these two are paired over the outer switch. */
static void pairs_over_an_outer_switch(void **state)
{
    (void)state;
    struct hoccl_topo *t =
        open_for("no-nic", (const char *const[]){"0000:AA:00.0", "0000:29:00.0", "0000:a5:00.0", "25:00.0", NULL});
    check_symmetric(t, 4, (const int[]){2, 3, 0, 1});
    assert_int_equal(t->others, 4);
    hoccl_topo_close(t);
}

/* Without a switch in common, NUMA nodes that differ are knowledge too. */
static void two_sockets_are_not_flat(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_for("no-nic", (const char *const[]){"25:00.0", "a5:00.0", NULL});
    check_symmetric(t, 2, (const int[]){-1, -1});
    assert_false(t->flat);
    hoccl_topo_close(t);
}

static void a_flat_virtual_machine(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("flat");
    check_symmetric(t, 4, (const int[]){-1, -1, -1, -1});
    check_nics(t, (const char *const[]){"mlx5_0", "mlx5_1", "mlx5_0", "mlx5_1"});
    assert_true(t->flat);
    hoccl_topo_close(t);
}

/* One of three GPUs below a switch stays alone; GPUs elsewhere are no substitute. The NICs there are shared out, also
 * to the GPU that is far from all. A VGA-class device of NVIDIA is a GPU too. */
static void odd_counts(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("odd");
    check_symmetric(t, 5, (const int[]){1, 0, -1, -1, -1});
    check_nics(t, (const char *const[]){"mlx5_0", "mlx5_1", "mlx5_0", "mlx5_2", "mlx5_1"});
    assert_int_equal(hoccl_topo_gpu_nic(t, 3, 2), HOCCL_TOPO_SAME_ROOT);
    assert_int_equal(hoccl_topo_gpu_nic(t, 4, 0), HOCCL_TOPO_SYSTEM);
    hoccl_topo_close(t);
}

/* Root, socket, other socket; a NIC made in software is taken by nobody while there is a real one. */
static void distances_beyond_a_switch(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("roots");
    check_nics(t, (const char *const[]){"mlx5_0", "mlx5_0", "mlx5_0"});
    assert_int_equal(hoccl_topo_gpu_nic(t, 0, 0), HOCCL_TOPO_SAME_ROOT);
    assert_int_equal(hoccl_topo_gpu_nic(t, 1, 0), HOCCL_TOPO_SAME_NUMA);
    assert_int_equal(hoccl_topo_gpu_nic(t, 2, 0), HOCCL_TOPO_SYSTEM);
    assert_string_equal(t->nic[1].name, "rxe0");
    assert_false(t->nic[1].on_pci);
    assert_int_equal(t->nic[1].gpus, 0);
    assert_false(t->flat);
    hoccl_topo_close(t);
}

/* A transport that knows better takes NICs out. */
static void nics_that_cannot_be_used(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("odd");
    hoccl_topo_choose_nics(t, (const bool[]){false, true, false});
    check_nics(t, (const char *const[]){"mlx5_1", "mlx5_1", "mlx5_1", "mlx5_1", "mlx5_1"});
    hoccl_topo_choose_nics(t, (const bool[]){false, false, false});
    check_nics(t, (const char *const[]){NULL, NULL, NULL, NULL, NULL});
    assert_int_equal(t->nic[1].gpus, 0);
    hoccl_topo_choose_nics(t, NULL);
    check_nics(t, (const char *const[]){"mlx5_0", "mlx5_1", "mlx5_0", "mlx5_2", "mlx5_1"});
    hoccl_topo_close(t);
    t = open_all("roots");
    hoccl_topo_choose_nics(t, (const bool[]){false, true});
    check_nics(t, (const char *const[]){"rxe0", "rxe0", "rxe0"});
    hoccl_topo_close(t);
}

/* The answers are in the caller's order, each GPU once; what others would use is not taken into account. */
static void gpus_that_the_caller_names(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_for(
        "two-gpus-a-nic", (const char *const[]){"0000:9B:00.0", "0000:19:00.0", "0000:9b:00.0", "0000:1A:00.0", NULL});
    check_symmetric(t, 3, (const int[]){-1, 2, 1});
    check_nics(t, (const char *const[]){"mlx5_1", "mlx5_0", "mlx5_0"});
    assert_int_equal(t->others, 1);
    assert_int_equal(hoccl_topo_find(t, &t->gpu[2].pci), 2);
    assert_int_equal(hoccl_topo_find(t, &t->nic[0].pci), -1);
    hoccl_topo_close(t);
}

/* Emulated GPUs, say: they have names that the machine does not know. */
static void gpus_that_the_topology_does_not_have(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_for("two-gpus-a-nic", (const char *const[]){"0000:77:00.0", "0001:19:00.0", NULL});
    check_symmetric(t, 2, (const int[]){-1, -1});
    check_nics(t, (const char *const[]){"mlx5_0", "mlx5_1"});
    assert_false(t->gpu[0].found);
    assert_int_equal(t->gpu[0].numa, -1);
    assert_string_equal(t->gpu[0].cpus, "");
    assert_int_equal(t->others, 4);
    hoccl_topo_close(t);
    t = open_for("no-gpu", (const char *const[]){"0000:77:00.0", "0001:19:00.0", NULL});
    assert_true(t->flat);
    hoccl_topo_close(t);
}

static void a_machine_without_gpu(void **state)
{
    (void)state;
    struct hoccl_topo *t = open_all("no-gpu");
    assert_int_equal(t->gpus, 0);
    assert_int_equal(t->nics, 0);
    assert_false(t->flat);
    hoccl_topo_close(t);
}

static void check_refused(const char *path, const char *text)
{
    struct hoccl_topo *t = NULL;
    assert_int_equal(hoccl_topo_open(path, NULL, 0, &t), HOCCL_ERR_ARGUMENT);
    assert_null(t);
    assert_non_null(strstr(hoccl_error_text(), path));
    if (!strstr(hoccl_error_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", hoccl_error_text(), text);
}

static void files_that_cannot_be_read(void **state)
{
    (void)state;
    check_refused(machine("broken"), "it is damaged");
    check_refused(machine("version3"), "version 3 of hwloc's XML");
    check_refused(machine("nowhere"), "No such file");
    check_refused("/dev/null", "no XML file of hwloc");
}

static void the_setting_names_a_file(void **state)
{
    (void)state;
    struct hoccl_topo *t = NULL;
    setenv("HOCCL_TOPO_FILE", machine("odd"), 1);
    assert_int_equal(hoccl_settings_load(), HOCCL_SUCCESS);
    assert_int_equal(hoccl_topo_open(NULL, NULL, 0, &t), HOCCL_SUCCESS);
    assert_int_equal(t->gpus, 5);
    hoccl_topo_close(t);
    unsetenv("HOCCL_TOPO_FILE");
    assert_int_equal(hoccl_settings_load(), HOCCL_SUCCESS);
}

/* Whatever machine this is: what is said of it hangs together. */
static void this_machine(void **state)
{
    (void)state;
    struct hoccl_topo *t = NULL;
    assert_int_equal(hoccl_topo_open(NULL, NULL, 0, &t), HOCCL_SUCCESS);
    for (int i = 0; i < t->gpus; i++) {
        assert_true(t->gpu[i].found);
        assert_true(t->gpu[i].symmetric < t->gpus);
        assert_true(t->gpu[i].nic >= 0 || !t->nics);
    }
    hoccl_topo_close(t);
    hoccl_topo_close(NULL);
}

static void pci_names(void **state)
{
    (void)state;
    static const char *const bad[] = {"",          "5d",           "5d:00",       "0000:5d:00",  "0000:5d:00.0 ",
                                      " 0:0:0.0",  "0000:5d:20.0", "5d:00.8",     "0000:5d:00.", "0000:5d:00.00",
                                      "x:5d:00.0", "0000:5d:-1.0", "0000:5d:00:0"};
    struct hoccl_pci a, b;
    char text[HOCCL_PCI_TEXT];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(hoccl_pci_parse(bad[i], &a));
    assert_true(hoccl_pci_parse("00000000:5D:1F.7", &a));
    assert_true(hoccl_pci_parse("5d:1f.7", &b));
    assert_true(hoccl_pci_equal(&a, &b));
    hoccl_pci_format(&a, text);
    assert_string_equal(text, "0000:5d:1f.7");
    assert_true(hoccl_pci_parse("FFFFFFFF:00:00.0", &a));
    hoccl_pci_format(&a, text);
    assert_string_equal(text, "ffffffff:00:00.0");
    assert_false(hoccl_pci_equal(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_gpus_and_a_nic_below_a_switch),
        cmocka_unit_test(a_nic_for_each_gpu),
        cmocka_unit_test(switches_behind_switches_without_nic),
        cmocka_unit_test(pairs_in_another_order),
        cmocka_unit_test(pairs_over_an_outer_switch),
        cmocka_unit_test(two_sockets_are_not_flat),
        cmocka_unit_test(a_flat_virtual_machine),
        cmocka_unit_test(odd_counts),
        cmocka_unit_test(distances_beyond_a_switch),
        cmocka_unit_test(nics_that_cannot_be_used),
        cmocka_unit_test(gpus_that_the_caller_names),
        cmocka_unit_test(gpus_that_the_topology_does_not_have),
        cmocka_unit_test(a_machine_without_gpu),
        cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(the_setting_names_a_file),
        cmocka_unit_test(this_machine),
        cmocka_unit_test(pci_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
