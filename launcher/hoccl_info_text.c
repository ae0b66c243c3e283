/* SPDX-License-Identifier: Apache-2.0 */
/* The document as text. Every function prints one section and nothing if the section is not there. */
#include "hoccl_info.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static const char *text_or(const json_t *object, const char *key, const char *other)
{
    const char *t = text(object, key);
    return t ? t : other;
}

/* A number or `other` for null, as text of one's own buffer. */
static const char *number(const json_t *value, const char *other, char buffer[32])
{
    if (!json_is_integer(value))
        return other;
    snprintf(buffer, 32, "%lld", (long long)json_integer_value(value));
    return buffer;
}

static const char *bytes(const json_t *value, const char *other, char buffer[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)json_integer_value(value);
    int unit = 0;
    if (!json_is_integer(value))
        return other;
    for (; n >= 1024 && unit < 4; unit++)
        n /= 1024;
    snprintf(buffer, 32, unit && n < 100 ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return buffer;
}

static void print_driver(const json_t *document)
{
    const json_t *driver = json_object_get(document, "driver");
    if (!json_is_object(driver))
        return;
    printf("driver       %s", text(driver, "name"));
    if (text(driver, "cuda") && !strstr(text(driver, "name"), "CUDA"))
        printf(", CUDA %s", text(driver, "cuda"));
    printf("\n");
    if (text(driver, "error"))
        printf("             not usable: %s\n", text(driver, "error"));
}

static void print_topology(const json_t *document)
{
    const json_t *topology = json_object_get(document, "topology");
    long long others = json_integer_value(json_object_get(topology, "other_gpus"));
    if (text(topology, "error")) {
        printf("topology     not usable: %s\n", text(topology, "error"));
        return;
    }
    printf("topology     %s: %zu GPUs, %zu NICs", text(topology, "machine"),
           json_array_size(json_object_get(document, "gpus")), json_array_size(json_object_get(document, "nics")));
    if (others)
        printf("; %lld more GPUs that the driver does not show here", others);
    printf("\n");
    if (!strcmp(text_or(topology, "locality", ""), "unknown"))
        printf("             locality unknown: the PCI tree tells no difference between them, so NICs are spread over "
               "ranks\n");
}

/* Where its slots for other nodes would lie, and by which NIC they go. */
static void print_slots(const json_t *slots)
{
    char gpu[32];
    if (!json_is_object(slots))
        return;
    printf("          slots for other nodes (%s): ", text(slots, "transport"));
    if (json_is_integer(json_object_get(slots, "gpu")))
        printf("on GPU %s%s", number(json_object_get(slots, "gpu"), "", gpu),
               json_is_true(json_object_get(slots, "flush")) ? ", flushed" : "");
    else if (!strcmp(text_or(slots, "place", ""), "hidden"))
        printf("on the symmetric GPU, which is hidden here, if one of the ranks has it; else in host memory");
    else
        printf("in host memory, %s", text(slots, "why"));
    if (text(slots, "nic"))
        printf("; NIC %s (%s)", text(slots, "nic"), text(slots, "nic_reason"));
    printf("\n");
}

static void print_gpu(const json_t *gpu)
{
    char index[32], numa[32], size[32], other[32];
    const json_t *symmetric = json_object_get(gpu, "symmetric");
    printf("  GPU %2s  %-12s  %s", number(json_object_get(gpu, "index"), "?", index), text(gpu, "pci"),
           text_or(gpu, "name", "(its name takes a driver)"));
    if (text(gpu, "uuid"))
        printf(", %s, %s", bytes(json_object_get(gpu, "memory"), "?", size), text(gpu, "uuid"));
    if (json_is_true(json_object_get(gpu, "in_topology")))
        printf("\n          NUMA node %s, CPUs %s, ", number(json_object_get(gpu, "numa"), "unknown", numa),
               text_or(gpu, "cpus", "unknown"));
    else
        printf("\n          not in the topology, ");
    if (json_is_integer(symmetric))
        printf("symmetric GPU %s, ", number(symmetric, "", other));
    else
        printf("no symmetric GPU, ");
    if (text(gpu, "nic"))
        printf("nearest NIC %s (%s)\n", text(gpu, "nic"), text_or(gpu, "nic_distance", "distance unknown"));
    else
        printf("no NIC\n");
    print_slots(json_object_get(gpu, "slots"));
}

static void print_gpus(const json_t *document)
{
    const json_t *gpus = json_object_get(document, "gpus"), *gpu;
    size_t i;
    if (!json_array_size(gpus) && text(json_object_get(document, "topology"), "error"))
        return;
    printf("\nGPUs\n");
    json_array_foreach(gpus, i, gpu) print_gpu(gpu);
    if (!json_array_size(gpus))
        printf("  none%s\n",
               json_is_object(json_object_get(document, "driver")) ? "; HOCCL_DEVICE=emu uses emulated ones" : "");
}

static void print_nics(const json_t *document)
{
    const json_t *nics = json_object_get(document, "nics"), *nic;
    char numa[32], ports[32], active[32], gpus[32];
    size_t i;
    if (text(json_object_get(document, "topology"), "error"))
        return;
    printf("\nNICs\n");
    json_array_foreach(nics, i, nic)
        printf("  %-12s  %-12s  NUMA node %s, ports %s, active %s, nearest to %s of the GPUs\n", text(nic, "name"),
               text_or(nic, "pci", "software"), number(json_object_get(nic, "numa"), "unknown", numa),
               number(json_object_get(nic, "ports"), "unknown", ports),
               number(json_object_get(nic, "active_ports"), "unknown", active),
               number(json_object_get(nic, "gpus"), "0", gpus));
    if (!json_array_size(nics))
        printf("  none with RDMA\n");
}

/* A port, the addresses in its table, and a star at the one that HOCCL uses. */
static void print_port(const json_t *port, bool used)
{
    const json_t *gid, *chosen = json_object_get(port, "gid");
    size_t i;
    printf("  %s:%lld%s%s%s  %s, %s, MTU %lld, LID %lld%s\n", text(port, "device"),
           json_integer_value(json_object_get(port, "port")), *text(port, "interface") ? " (" : "", text(port, "interface"),
           *text(port, "interface") ? ")" : "", text(port, "layer"),
           json_is_true(json_object_get(port, "active")) ? "active" : "down",
           json_integer_value(json_object_get(port, "mtu")), json_integer_value(json_object_get(port, "lid")),
           used ? ", used" : "");
    json_array_foreach(json_object_get(port, "gids"), i, gid)
        printf("    %c GID %lld  %-10s  %s\n", json_equal(json_object_get(gid, "index"), chosen) ? '*' : ' ',
               json_integer_value(json_object_get(gid, "index")), text(gid, "type"), text(gid, "address"));
}

static void print_rdma(const json_t *document)
{
    const json_t *rdma = json_object_get(document, "rdma"), *used = json_object_get(rdma, "used"), *port;
    size_t i;
    if (!rdma)
        return;
    printf("\nRDMA\n");
    json_array_foreach(json_object_get(rdma, "ports"), i, port)
        print_port(port, json_is_integer(used) && json_integer_value(used) == (json_int_t)i);
    if (text(rdma, "error"))
        printf("  not usable: %s\n", text(rdma, "error"));
}

/* A cell of a matrix: what stands there in one word. */
static const char *cell(const json_t *value, bool diagonal)
{
    const char *t = json_string_value(value), *word = t ? strrchr(t, ' ') : NULL;
    if (diagonal)
        return ".";
    if (json_is_boolean(value))
        return json_is_true(value) ? "yes" : "no";
    return word ? word + 1 : t ? t : "?";
}

/* `first` is GPU × GPU, `second` GPU × NIC or NULL. */
static void print_matrix(const json_t *first, const json_t *second, const json_t *nics)
{
    const json_t *row, *value, *nic;
    size_t a, b;
    printf("  %6s", "");
    for (a = 0; a < json_array_size(first); a++)
        printf("  GPU %2zu", a);
    if (second)
        json_array_foreach(nics, b, nic) printf(" %7s", text(nic, "name"));
    printf("\n");
    json_array_foreach(first, a, row)
    {
        printf("  GPU %2zu", a);
        json_array_foreach(row, b, value) printf(" %7s", cell(value, a == b));
        json_array_foreach(json_array_get(second, a), b, value) printf(" %7s", cell(value, false));
        printf("\n");
    }
}

static void print_paths(const json_t *document)
{
    const json_t *peers = json_object_get(document, "peer_access"), *distances = json_object_get(document, "distances");
    if (!json_array_size(json_object_get(document, "gpus")))
        return;
    if (peers) {
        printf("\nPeer access (row's GPU to column's memory)\n");
        if (json_is_array(peers))
            print_matrix(peers, NULL, NULL);
        else
            printf("  unknown without a driver\n");
    }
    printf("\nWhat they have in common (switch, root, NUMA node, only the system)\n");
    print_matrix(json_object_get(distances, "gpu_gpu"), json_object_get(distances, "gpu_nic"),
                 json_object_get(document, "nics"));
}

static void print_transports(const json_t *document)
{
    const json_t *all = json_object_get(document, "transports"), *t;
    size_t i;
    if (!all)
        return;
    printf("\nTransports\n");
    json_array_foreach(all, i, t)
        printf("  %-14s %-14s %s\n", text(t, "name"), text(t, "reach"), text_or(t, "why", "available"));
}

static void print_channels(const json_t *document)
{
    const json_t *c = json_object_get(document, "channels");
    char channels[32], from[32], most[32];
    if (!c)
        return;
    printf("\nHardware channels\n  %s: %s, so %s of a class; ", text(c, "variable"), text_or(c, "value", "not set"),
           number(json_object_get(c, "channels"), "?", channels));
    if (json_is_integer(json_object_get(c, "gate_from")))
        printf("with %s or more parked streams their waits get a gate",
               number(json_object_get(c, "gate_from"), "", from));
    else
        printf("no wait gets a gate");
    printf(" (at most %s are parked)\n", number(json_object_get(c, "most_parked"), "?", most));
}

static const char *value_of(const json_t *setting)
{
    const char *value = text_or(setting, "value", text(setting, "default"));
    return *value ? value : "-";
}

static void print_settings(const json_t *document)
{
    const json_t *all = json_object_get(document, "settings"), *s;
    size_t i;
    if (!all)
        return;
    printf("\nSettings (* set here)\n");
    json_array_foreach(all, i, s)
        printf("%c %-20s %-10s %s\n", text(s, "value") ? '*' : ' ', text(s, "name"), value_of(s), text(s, "about"));
    if (text(document, "settings_error"))
        printf("  HOCCL_Init will fail: %s\n", text(document, "settings_error"));
}

static void print_limits(const json_t *document)
{
    const json_t *l = json_object_get(document, "limits"), *memory = json_object_get(l, "memlock");
    const json_t *files = json_object_get(l, "open_files"), *shm = json_object_get(l, "dev_shm");
    char a[32], b[32], c[32], d[32], e[32];
    if (!l)
        return;
    printf("\nLimits\n");
    printf("  locked memory  %s (at most %s)\n", bytes(json_object_get(memory, "now"), "unlimited", a),
           bytes(json_object_get(memory, "most"), "unlimited", b));
    printf("  open files     %s (at most %s)\n", number(json_object_get(files, "now"), "unlimited", c),
           number(json_object_get(files, "most"), "unlimited", d));
    printf("  /dev/shm       %s, not needed\n", bytes(json_object_get(shm, "bytes"), "not there", e));
}

static void print_launcher(const json_t *document)
{
    const json_t *l = json_object_get(document, "launcher");
    char rank[32], ranks[32];
    if (!l)
        return;
    printf("\nLauncher\n  %s", text(l, "name"));
    if (json_is_integer(json_object_get(l, "rank")))
        printf(", rank %s of %s", number(json_object_get(l, "rank"), "?", rank),
               number(json_object_get(l, "ranks"), "?", ranks));
    printf("\n");
    if (text(l, "hint"))
        printf("  %s\n", text(l, "hint"));
}

void info_print(const json_t *document)
{
    printf("HOCCL %s\n\n", text(document, "version"));
    print_driver(document);
    print_topology(document);
    print_gpus(document);
    print_nics(document);
    print_rdma(document);
    print_paths(document);
    print_transports(document);
    print_channels(document);
    print_settings(document);
    print_limits(document);
    print_launcher(document);
}
