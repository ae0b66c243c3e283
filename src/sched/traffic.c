/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C → T (paper section 3.4, equations 2-5) and the lower bound.
 *
 * An inter-node flow (u, v) is three pieces: a push (u, ū) into a slot, the wire (u, v), a pull (v̄, v) out of a slot:
 *
 *      u ──push──▶ slot on ū ──NIC of u ══ NIC of v──▶ slot on v̄ ──pull──▶ v
 *
 * and a self copy, which must leave the GPU to need no SM, is a push (u, ū) and a pull (ū, u). So
 *   T[u,v] = C[u,v] + [v = ū]·(A_u + C[u,u]) + [u = v̄]·(B_v + C[v,v])        within a node,
 * and T[u,v] = C[u,v] between nodes. A GPU staged in host memory has D2H and H2D in place of push and pull.
 * Each piece loads an engine, both ends of a link, a NIC and the PCIe link of the GPU that holds the slot; the largest
 * load over its rate is the lower bound of any schedule.
 */
#include "sched/traffic.h"

#include <inttypes.h>
#include <string.h>

#define LINE_LIMIT ((uint64_t)INT64_MAX)
#define BOUND_LIMIT ((uint64_t)1 << 59)	/* ns, 18 years; leaves room to add up any schedule's time */

int hoccl_layout_slot(const struct hoccl_layout *layout, int gpu, int nic)
{
	int pair = layout->pair[nic];

	if (layout->pair[gpu] == HOCCL_PAIR_HOST)
		return HOCCL_PAIR_HOST;
	return pair == gpu || pair == HOCCL_PAIR_HOST ? nic : pair;
}

void hoccl_load_wire(struct hoccl_load *load, const struct hoccl_layout *layout, const struct hoccl_path *path,
		     uint64_t bytes)
{
	int out = hoccl_layout_slot(layout, path->src, path->out);
	int in = hoccl_layout_slot(layout, path->dst, path->in);

	load[path->out].bytes[HOCCL_LINE_NIC_OUT] += bytes;
	load[path->in].bytes[HOCCL_LINE_NIC_IN] += bytes;
	if (out == HOCCL_PAIR_HOST) {
		load[path->src].bytes[HOCCL_LINE_PCIE_OUT] += bytes;
	} else {
		load[path->src].bytes[HOCCL_LINE_PUSH] += bytes;
		load[path->src].bytes[HOCCL_LINE_NVLINK_OUT] += bytes;
	}
	if (out >= 0) {
		load[out].bytes[HOCCL_LINE_NVLINK_IN] += bytes;
		load[out].bytes[HOCCL_LINE_PCIE_OUT] += bytes;
	}
	if (in == HOCCL_PAIR_HOST) {
		load[path->dst].bytes[HOCCL_LINE_PCIE_IN] += bytes;
	} else {
		load[path->dst].bytes[HOCCL_LINE_PULL] += bytes;
		load[path->dst].bytes[HOCCL_LINE_NVLINK_IN] += bytes;
	}
	if (in >= 0) {
		load[in].bytes[HOCCL_LINE_NVLINK_OUT] += bytes;
		load[in].bytes[HOCCL_LINE_PCIE_IN] += bytes;
	}
}

static void load_self(struct hoccl_load *load, const struct hoccl_layout *layout, int u, uint64_t bytes)
{
	int pair = layout->pair[u];

	if (pair == HOCCL_PAIR_HOST) {
		load[u].bytes[HOCCL_LINE_PCIE_OUT] += bytes;
		load[u].bytes[HOCCL_LINE_PCIE_IN] += bytes;
		return;
	}
	load[u].bytes[HOCCL_LINE_PUSH] += bytes;
	load[u].bytes[HOCCL_LINE_NVLINK_OUT] += bytes;
	load[u].bytes[HOCCL_LINE_PULL] += bytes;
	load[u].bytes[HOCCL_LINE_NVLINK_IN] += bytes;
	if (pair >= 0) {
		load[pair].bytes[HOCCL_LINE_NVLINK_IN] += bytes;
		load[pair].bytes[HOCCL_LINE_NVLINK_OUT] += bytes;
	}
}

void hoccl_load_local(struct hoccl_load *load, const struct hoccl_layout *layout, int u, int v, uint64_t bytes)
{
	if (u == v) {
		load_self(load, layout, u, bytes);
		return;
	}
	load[u].bytes[HOCCL_LINE_PUSH] += bytes;
	load[u].bytes[HOCCL_LINE_NVLINK_OUT] += bytes;
	load[v].bytes[HOCCL_LINE_NVLINK_IN] += bytes;
}

/* Finds the entry at which a row or column sum passes 2^63 - 1; 0 when none does. */
static int find_overflow(const uint64_t *c, int gpus, struct hoccl_plan_error *error)
{
	uint64_t column[HOCCL_SCHED_MAX_GPUS] = {0};

	for (int u = 0; u < gpus; u++) {
		uint64_t row = 0;

		for (int v = 0; v < gpus; v++) {
			uint64_t bytes = c[(size_t)u * gpus + v];

			if (bytes > LINE_LIMIT - row)
				return hoccl_plan_fail(error, HOCCL_PLAN_OVERFLOW, "C[%d,%d] = %" PRIu64
						       ": the sum of row %d passes 2^63 - 1 here", u, v, bytes, u);
			if (bytes > LINE_LIMIT - column[v])
				return hoccl_plan_fail(error, HOCCL_PLAN_OVERFLOW, "C[%d,%d] = %" PRIu64
						       ": the sum of column %d passes 2^63 - 1 here", u, v, bytes, v);
			row += bytes;
			column[v] += bytes;
		}
	}
	return 0;
}

void hoccl_load_ends(struct hoccl_load *load, const struct hoccl_layout *layout, int g, uint64_t out, uint64_t in)
{
	int pair = layout->pair[g];

	load[g].bytes[HOCCL_LINE_NIC_OUT] += out;
	load[g].bytes[HOCCL_LINE_NIC_IN] += in;
	if (pair == HOCCL_PAIR_HOST) {
		load[g].bytes[HOCCL_LINE_PCIE_OUT] += out;
		load[g].bytes[HOCCL_LINE_PCIE_IN] += in;
		return;
	}
	load[g].bytes[HOCCL_LINE_PUSH] += out;
	load[g].bytes[HOCCL_LINE_NVLINK_OUT] += out;
	load[g].bytes[HOCCL_LINE_PULL] += in;
	load[g].bytes[HOCCL_LINE_NVLINK_IN] += in;
	if (pair < 0)
		return;
	load[pair].bytes[HOCCL_LINE_NVLINK_IN] += out;
	load[pair].bytes[HOCCL_LINE_PCIE_OUT] += out;
	load[pair].bytes[HOCCL_LINE_NVLINK_OUT] += in;
	load[pair].bytes[HOCCL_LINE_PCIE_IN] += in;
}

static void add_sums(struct hoccl_traffic *t)
{
	for (int g = 0; g < t->layout->gpus; g++)
		hoccl_load_ends(t->load, t->layout, g, t->off_out[g], t->off_in[g]);
}

static void clear(struct hoccl_traffic *t, const struct hoccl_layout *layout, const uint64_t *c)
{
	t->layout = layout;
	t->c = c;
	t->wires = t->locals = false;
	memset(t->load, 0, sizeof(t->load[0]) * (size_t)layout->gpus);
	memset(t->off_out, 0, sizeof(t->off_out[0]) * (size_t)layout->gpus);
	memset(t->off_in, 0, sizeof(t->off_in[0]) * (size_t)layout->gpus);
}

/* The part of row u that stays in its node; taken out of the sums, which so far hold the whole matrix. */
static void split_row(struct hoccl_traffic *t, int u)
{
	const struct hoccl_layout *layout = t->layout;
	const uint64_t *row = t->c + (size_t)u * layout->gpus;
	int n = layout->node[u];

	for (int i = layout->first[n]; i < layout->first[n + 1]; i++) {
		int v = layout->member[i];

		if (!row[v])
			continue;
		t->off_out[u] -= row[v];
		t->off_in[v] -= row[v];
		t->locals = true;
		hoccl_load_local(t->load, layout, u, v, row[v]);
	}
}

int hoccl_traffic_init(struct hoccl_traffic *t, const struct hoccl_layout *layout, const uint64_t *c,
		       struct hoccl_plan_error *error)
{
	int gpus = layout->gpus, status = 0;
	uint64_t any = 0;

	clear(t, layout, c);
	for (int u = 0; u < gpus; u++) {
		const uint64_t *row = c + (size_t)u * gpus;
		uint64_t sum = 0;

		for (int v = 0; v < gpus; v++) {
			any |= row[v];
			sum += row[v];
			t->off_in[v] += row[v];
		}
		t->off_out[u] = sum;
	}
	if (any > LINE_LIMIT / HOCCL_SCHED_MAX_GPUS)	/* only then can a sum have wrapped */
		status = find_overflow(c, gpus, error);
	if (status)
		return status;
	for (int u = 0; u < gpus; u++)
		split_row(t, u);
	for (int u = 0; u < gpus; u++)
		t->wires = t->wires || t->off_out[u];
	add_sums(t);
	return 0;
}

int hoccl_traffic_uniform(struct hoccl_traffic *t, const struct hoccl_layout *layout, uint64_t bytes,
			  struct hoccl_plan_error *error)
{
	if (bytes > LINE_LIMIT / (uint64_t)layout->gpus)
		return hoccl_plan_fail(error, HOCCL_PLAN_OVERFLOW, "%d entries of %" PRIu64
				       " bytes: the sum of row 0 passes 2^63 - 1", layout->gpus, bytes);
	clear(t, layout, NULL);
	for (int g = 0; g < layout->gpus; g++) {
		uint64_t peers = (uint64_t)hoccl_layout_size(layout, layout->node[g]) - 1;

		t->off_out[g] = t->off_in[g] = bytes * ((uint64_t)layout->gpus - 1 - peers);
		t->load[g].bytes[HOCCL_LINE_PUSH] += peers * bytes;
		t->load[g].bytes[HOCCL_LINE_NVLINK_OUT] += peers * bytes;
		t->load[g].bytes[HOCCL_LINE_NVLINK_IN] += peers * bytes;
		load_self(t->load, layout, g, bytes);
	}
	t->wires = bytes && layout->nodes > 1;
	t->locals = bytes;
	add_sums(t);
	return 0;
}

uint64_t hoccl_traffic_entry(const struct hoccl_traffic *t, int u, int v)
{
	const struct hoccl_layout *layout = t->layout;
	const uint64_t *c = t->c;
	size_t gpus = (size_t)layout->gpus;

	if (layout->node[u] != layout->node[v])
		return c[(size_t)u * gpus + (size_t)v];
	if (u == v)	/* a self copy leaves the GPU where it can; in host staging it never touches NVLink */
		return 0;
	uint64_t bytes = c[(size_t)u * gpus + (size_t)v];

	if (layout->pair[u] == v)
		bytes += t->off_out[u] + c[(size_t)u * gpus + (size_t)u] + t->off_in[v] +
			 c[(size_t)v * gpus + (size_t)v];
	return bytes;
}

uint64_t hoccl_load_time(const struct hoccl_load *load, int gpus, const struct hoccl_machine *machine, int *gpu,
			 enum hoccl_line *line)
{
	uint64_t most[HOCCL_LINES] = {0}, longest = 0;
	int where[HOCCL_LINES] = {0}, best = 0;

	for (int g = 0; g < gpus; g++)
		for (int l = 0; l < HOCCL_LINES; l++)
			if (load[g].bytes[l] > most[l]) {
				most[l] = load[g].bytes[l];
				where[l] = g;
			}
	for (int l = 0; l < HOCCL_LINES; l++) {
		uint64_t ns = hoccl_rate_time(&machine->rate[l], most[l]);

		if (ns > longest) {
			longest = ns;
			best = l;
		}
	}
	if (gpu)
		*gpu = where[best];
	if (line)
		*line = (enum hoccl_line)best;
	return longest;
}

int hoccl_traffic_bound(const struct hoccl_traffic *t, const struct hoccl_machine *machine, uint64_t *ns,
			struct hoccl_plan_error *error)
{
	enum hoccl_line line;
	int gpu;
	uint64_t bound = hoccl_load_time(t->load, t->layout->gpus, machine, &gpu, &line);

	if (bound > BOUND_LIMIT)
		return hoccl_plan_fail(error, HOCCL_PLAN_OVERFLOW, "GPU %d, %s: %" PRIu64 " bytes at %" PRIu64
				       " B/s take longer than the planner can compute with", gpu,
				       hoccl_line_name(line), t->load[gpu].bytes[line],
				       machine->rate[line].bytes_per_s);
	*ns = bound;
	return 0;
}
