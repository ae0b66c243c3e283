/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_MACHINE_H
#define HOCCL_SCHED_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* What the planner knows of the hardware: rates of its lines and the costs of starting something. */

/* A rate as an integer, with its inverse prepared so that a time is one multiplication. */
struct hoccl_rate {
	uint64_t bytes_per_s;
	uint64_t ns_scaled;	/* nanoseconds a byte, times 2^60, rounded up */
};

/* The lines of one GPU that traffic loads; each direction of a link is a line of its own. */
enum hoccl_line {
	HOCCL_LINE_PUSH,	/* copy engine that writes to peers */
	HOCCL_LINE_PULL,	/* copy engine that reads from peers */
	HOCCL_LINE_NVLINK_OUT,
	HOCCL_LINE_NVLINK_IN,
	HOCCL_LINE_NIC_OUT,
	HOCCL_LINE_NIC_IN,
	HOCCL_LINE_PCIE_OUT,	/* from the GPU: its NIC reads a slot, or D2H */
	HOCCL_LINE_PCIE_IN,	/* to the GPU: its NIC writes a slot, or H2D */
	HOCCL_LINES,
};

struct hoccl_machine {
	const char *name;
	struct hoccl_rate rate[HOCCL_LINES];
	uint64_t start_ns;	/* one flow or one stage, in plans */
	uint64_t copy_ns;	/* one chunk on a copy engine, beside its bytes */
	uint64_t wire_ns;	/* one chunk on a NIC, beside its bytes */
	uint64_t launch_ns;	/* an operation from the call to its first copy, and back at the end */
	uint64_t seen_ns;	/* a copy's end until the CPU has seen it and submitted the next */
	uint64_t chunk_bytes;	/* of a copy within the node */
	uint64_t slot_bytes;	/* of a staged chunk */
	unsigned int slots;	/* staging slots a GPU, each way */
	bool one_engine;	/* pushes and pulls of a GPU go one after the other */

	/* Of what the runtime does within a node (hoccl-plan --method turns): */
	uint64_t hop_ns;	/* a copy's end until the CPU has seen it and the next one, in another stream, is with the engine */
	uint64_t skew_ns;	/* the first GPU begins so long before the last one; launch_ns counts from the first */
	struct hoccl_rate staged;	/* copies of one slot in host memory */
	unsigned int beside_host_percent;	/* a GPU that copies to and from host memory at once pushes and pulls so much slower */
};

/* The largest time the planner computes with: beyond it times saturate and plans are refused. */
#define HOCCL_TIME_MAX ((uint64_t)1 << 62)

/* Rates from 100 MB/s to 100 TB/s; outside the nearest of these is taken. */
struct hoccl_rate hoccl_rate_of(uint64_t bytes_per_s);

/* Nanoseconds for `bytes`, rounded up, at most HOCCL_TIME_MAX. */
uint64_t hoccl_rate_time(const struct hoccl_rate *rate, uint64_t bytes);

/* The most bytes whose time is at most `ns` (ns up to HOCCL_TIME_MAX), at most UINT64_MAX. */
uint64_t hoccl_rate_bytes(const struct hoccl_rate *rate, uint64_t ns);

/* The rate of one inter-node flow alone: the slowest of all that it passes through. */
const struct hoccl_rate *hoccl_machine_wire(const struct hoccl_machine *machine);

/* A built-in model by name ("h800", "h200"); NULL when there is none. */
const struct hoccl_machine *hoccl_machine_find(const char *name);

const char *hoccl_line_name(enum hoccl_line line);

#endif
