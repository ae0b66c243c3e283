/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs and symmetric pairs of a machine recorded by hwloc (lstopo --of xml).
 *
 * GPUs are NVIDIA's PCI devices of the display and 3D classes, in PCI order. A GPU's symmetric GPU is the free one with
 * which it shares the nearest PCIe bridge (paper section 3.3.1: the same switch); failing that, one below the same host
 * bridge or NUMA node, which is as far from a NIC there.
 */
#include "hoccl_plan_tool.h"

#include <hwloc.h>

#define NVIDIA 0x10de
#define CLASS_DISPLAY 0x0300
#define CLASS_3D 0x0302

static bool is_gpu(hwloc_obj_t device)
{
	unsigned int class = device->attr->pcidev.class_id;

	return device->attr->pcidev.vendor_id == NVIDIA && (class == CLASS_DISPLAY || class == CLASS_3D);
}

static int height(hwloc_obj_t object)
{
	int height = 0;

	for (; object->parent; object = object->parent)
		height++;
	return height;
}

/* How deep in the tree the nearest common ancestor lies, the machine itself = 0. */
static int common_depth(hwloc_obj_t a, hwloc_obj_t b)
{
	int depth_a = height(a), depth_b = height(b);

	while (a != b) {
		if (depth_a >= depth_b) {
			a = a->parent;
			depth_a--;
		} else {
			b = b->parent;
			depth_b--;
		}
	}
	return depth_a;
}

static void pair_nearest(hwloc_obj_t *gpu, int gpus, int *pair, int lone)
{
	int deepest = 0;

	for (int i = 0; i < gpus; i++) {
		pair[i] = lone;
		deepest = height(gpu[i]) > deepest ? height(gpu[i]) : deepest;
	}
	for (int depth = deepest; depth > 0; depth--)
		for (int i = 0; i < gpus; i++)
			for (int k = i + 1; k < gpus && pair[i] == lone; k++)
				if (pair[k] == lone && common_depth(gpu[i], gpu[k]) == depth) {
					pair[i] = k;
					pair[k] = i;
				}
}

static int find_gpus(hwloc_topology_t topology, const char *path, int *gpus, int *pair, int lone,
		     struct hoccl_plan_error *error)
{
	hwloc_obj_t gpu[HOCCL_SCHED_MAX_GPUS], device = NULL;

	*gpus = 0;
	while ((device = hwloc_get_next_pcidev(topology, device)) && *gpus < HOCCL_SCHED_MAX_GPUS)
		if (is_gpu(device))
			gpu[(*gpus)++] = device;
	if (!*gpus)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s: no NVIDIA GPU in this topology", path);
	pair_nearest(gpu, *gpus, pair, lone);
	return 0;
}

int hoccl_input_hwloc(const char *path, int *gpus, int *pair, int lone, struct hoccl_plan_error *error)
{
	hwloc_topology_t topology;
	int status;

	if (hwloc_topology_init(&topology))
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "%s: hwloc did not start", path);
	if (hwloc_topology_set_xml(topology, path) ||
	    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL) || hwloc_topology_load(topology))
		status = hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s: not a topology that hwloc can read", path);
	else
		status = find_gpus(topology, path, gpus, pair, lone, error);
	hwloc_topology_destroy(topology);
	return status;
}
