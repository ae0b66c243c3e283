/* SPDX-License-Identifier: Apache-2.0 */
/* What a stage of a plan loads each domain with, for hoccl-plan's outputs. */
#include "hoccl_plan_tool.h"

#include <string.h>

const char *const hoccl_domains[HOCCL_DOMAINS] = {"nic", "pcie", "nvlink", "copy"};

static const enum hoccl_line lines[HOCCL_DOMAINS][2] = {
	{HOCCL_LINE_NIC_OUT, HOCCL_LINE_NIC_IN},
	{HOCCL_LINE_PCIE_OUT, HOCCL_LINE_PCIE_IN},
	{HOCCL_LINE_NVLINK_OUT, HOCCL_LINE_NVLINK_IN},
	{HOCCL_LINE_PUSH, HOCCL_LINE_PULL},
};

/* The longest of the domain's two lines on any GPU. */
static void find_busiest(const struct hoccl_tool *t, const struct hoccl_load *load, enum hoccl_domain domain,
			 struct hoccl_stage_load *sum)
{
	for (int g = 0; g < t->layout.gpus; g++)
		for (int way = 0; way < 2; way++) {
			enum hoccl_line l = lines[domain][way];
			uint64_t ns = hoccl_rate_time(&t->machine.rate[l], load[g].bytes[l]);

			if (ns <= sum->domain_ns[domain])
				continue;
			sum->domain_ns[domain] = ns;
			sum->domain_bytes[domain] = load[g].bytes[l];
			sum->domain_gpu[domain] = g;
		}
}

void hoccl_stage_load(const struct hoccl_tool *t, const struct hoccl_plan *plan, uint32_t stage, struct hoccl_load *load,
		      struct hoccl_stage_load *sum)
{
	const struct hoccl_plan_stage *s = &plan->stage[stage];

	memset(load, 0, (size_t)t->layout.gpus * sizeof(*load));
	*sum = (struct hoccl_stage_load){.wires = s[1].first_wire - s->first_wire,
					 .locals = s[1].first_local - s->first_local};
	for (size_t i = s->first_wire; i < s[1].first_wire; i++) {
		hoccl_load_wire(load, &t->layout, &plan->wire[i].path, plan->wire[i].bytes);
		sum->wire_bytes += plan->wire[i].bytes;
	}
	for (size_t i = s->first_local; i < s[1].first_local; i++) {
		const struct hoccl_local *l = &plan->local[i];

		hoccl_load_local(load, &t->layout, l->src, l->dst, l->bytes);
		sum->local_bytes += l->bytes;
	}
	for (int d = 0; d < HOCCL_DOMAINS; d++)
		find_busiest(t, load, (enum hoccl_domain)d, sum);
}
