/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machine models and the arithmetic of time.
 *
 * Every rank must compute the same plan bit for bit, so times are integers (nanoseconds) and a rate's inverse is a
 * fixed-point number: time = ceil(bytes × inverse / 2^60). The error is below one part in 2^50 at the rates allowed.
 *
 * h800: the paper's testbed (section 6.1): NVLink 200 GB/s a direction by its own Figure 7a, NIC 48.8 by Figure 7b. Its
 * 19.6 GB/s at 2 MB and 192.2 at 1 GB are a fixed 96 µs and 64 copies of 16 MiB at 2.2 µs each.
 * h200: two H200 of one host, measured by this project (copy engines; 14.5 µs is what Send and Recv of 2 to 32 MiB take beside their
 * copies, one after another on a stream); the NIC is assumed to be the paper's. What turns within a node go by is explained beside its
 * measurements in doc/performance-planner.md.
 */
#include "sched/machine.h"

#include <string.h>

#define SCALE 60
#define GIGA UINT64_C(1000000000)

static uint64_t scaled(uint64_t bytes_per_s)
{
	unsigned __int128 numerator = (unsigned __int128)GIGA << SCALE;

	return (uint64_t)((numerator + bytes_per_s - 1) / bytes_per_s);
}

struct hoccl_rate hoccl_rate_of(uint64_t bytes_per_s)
{
	const uint64_t least = 100000000, most = 100000 * GIGA;

	if (bytes_per_s < least)
		bytes_per_s = least;
	if (bytes_per_s > most)
		bytes_per_s = most;
	return (struct hoccl_rate){bytes_per_s, scaled(bytes_per_s)};
}

uint64_t hoccl_rate_time(const struct hoccl_rate *rate, uint64_t bytes)
{
	const unsigned __int128 round = ((unsigned __int128)1 << SCALE) - 1;
	unsigned __int128 product = (unsigned __int128)bytes * rate->ns_scaled;
	unsigned __int128 ns = (product >> SCALE) + ((product & round) != 0);

	return ns > HOCCL_TIME_MAX ? HOCCL_TIME_MAX : (uint64_t)ns;
}

uint64_t hoccl_rate_bytes(const struct hoccl_rate *rate, uint64_t ns)
{
	unsigned __int128 bytes = ((unsigned __int128)ns << SCALE) / rate->ns_scaled;

	return bytes > UINT64_MAX ? UINT64_MAX : (uint64_t)bytes;
}

#define MIB (UINT64_C(1) << 20)

#define RATE(mb) {(mb) * UINT64_C(1000000), (uint64_t)(((((unsigned __int128)GIGA) << SCALE) + \
	(mb) * UINT64_C(1000000) - 1) / ((mb) * UINT64_C(1000000)))}

static const struct hoccl_machine models[] = {
	{
		.name = "h800",
		.rate = {
			[HOCCL_LINE_PUSH] = RATE(200000), [HOCCL_LINE_PULL] = RATE(200000),
			[HOCCL_LINE_NVLINK_OUT] = RATE(200000), [HOCCL_LINE_NVLINK_IN] = RATE(200000),
			[HOCCL_LINE_NIC_OUT] = RATE(48800), [HOCCL_LINE_NIC_IN] = RATE(48800),
			[HOCCL_LINE_PCIE_OUT] = RATE(55000), [HOCCL_LINE_PCIE_IN] = RATE(55000),
		},
		.start_ns = 3800, .copy_ns = 2200, .wire_ns = 0, .launch_ns = 96000, .seen_ns = 8000,
		.chunk_bytes = 16 * MIB, .slot_bytes = 4 * MIB, .slots = 16, .hop_ns = 8000, .staged = RATE(55000),
	},
	{
		.name = "h200",
		.rate = {
			[HOCCL_LINE_PUSH] = RATE(396000), [HOCCL_LINE_PULL] = RATE(352000),
			[HOCCL_LINE_NVLINK_OUT] = RATE(396000), [HOCCL_LINE_NVLINK_IN] = RATE(396000),
			[HOCCL_LINE_NIC_OUT] = RATE(48800), [HOCCL_LINE_NIC_IN] = RATE(48800),
			[HOCCL_LINE_PCIE_OUT] = RATE(55000), [HOCCL_LINE_PCIE_IN] = RATE(55000),
		},
		.start_ns = 3800, .copy_ns = 2200, .wire_ns = 0, .launch_ns = 14500, .seen_ns = 8000,
		.chunk_bytes = 32 * MIB, .slot_bytes = 4 * MIB, .slots = 16, .one_engine = true,
		.hop_ns = 9000, .skew_ns = 4000, .staged = RATE(37000), .beside_host_percent = 5,
	},
};

const struct hoccl_rate *hoccl_machine_wire(const struct hoccl_machine *machine)
{
	static const enum hoccl_line passed[] = {
		HOCCL_LINE_PUSH, HOCCL_LINE_PULL, HOCCL_LINE_NIC_IN, HOCCL_LINE_PCIE_OUT, HOCCL_LINE_PCIE_IN,
	};
	const struct hoccl_rate *slowest = &machine->rate[HOCCL_LINE_NIC_OUT];

	for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
		if (machine->rate[passed[i]].bytes_per_s < slowest->bytes_per_s)
			slowest = &machine->rate[passed[i]];
	return slowest;
}

const struct hoccl_machine *hoccl_machine_find(const char *name)
{
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (!strcmp(models[i].name, name))
			return &models[i];
	return NULL;
}

const char *hoccl_line_name(enum hoccl_line line)
{
	static const char *const names[HOCCL_LINES] = {
		"push engine", "pull engine", "NVLink out", "NVLink in", "NIC out", "NIC in", "PCIe out", "PCIe in",
	};

	return line < HOCCL_LINES ? names[line] : "?";
}
