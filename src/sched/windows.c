/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Native traffic beside a schedule that has no stages.
 *
 * The wires' times are fixed first. Their time is then cut into equal windows; what the forwarding copies load on each
 * line in a window is known (a wire's bytes pass evenly over its time), and the rest of the line's capacity is filled
 * as a stage's slack is. The result is exact to a window: a work-conserving engine, in which forwarding chunks go first
 * and native chunks take what is left, does not need more.
 */
#include "sched/fill.h"

#include <stdlib.h>
#include <string.h>

#define MOST_WINDOWS 16
#define LEAST_WINDOW_NS 250000
#define LEAST_WINDOW_STARTS 32	/* so that pieces are not cut up for nothing */

struct windows {
	const struct hoccl_wires *wires;
	struct hoccl_load *load;	/* windows × gpus */
	uint32_t count;
	uint64_t ns;
};

/* The bytes that pass of `bytes` from `start` to `end`, in the part from `from` to `to` of it. */
static uint64_t passed(uint64_t bytes, uint64_t length, uint64_t from, uint64_t to)
{
	unsigned __int128 before = (unsigned __int128)bytes * from / length;
	unsigned __int128 after = (unsigned __int128)bytes * to / length;

	return (uint64_t)(after - before);
}

static void add_path(struct windows *w, const struct hoccl_path *path, uint64_t bytes, uint64_t start, uint64_t end)
{
	int gpus = w->wires->layout->gpus;
	uint64_t first = start / w->ns, last = (end - 1) / w->ns;

	for (uint64_t k = first; k <= last && k < w->count; k++) {
		uint64_t from = k * w->ns > start ? k * w->ns : start;
		uint64_t to = (k + 1) * w->ns < end && k + 1 < w->count ? (k + 1) * w->ns : end;
		uint64_t part = first == last ? bytes : passed(bytes, end - start, from - start, to - start);

		hoccl_load_wire(w->load + (size_t)k * (size_t)gpus, w->wires->layout, path, part);
	}
}

/* One NIC-to-NIC transfer, whose pieces (with relay) follow one another. */
static void add_wire(struct windows *w, const struct hoccl_slotted *item)
{
	const struct hoccl_wires *wires = w->wires;
	struct hoccl_path path = {item->out, item->in, item->out, item->in};

	if (!wires->piece) {
		add_path(w, &path, item->bytes, item->start_ns, item->end_ns);
		return;
	}
	size_t cell = (size_t)item->out * (size_t)wires->layout->gpus + (size_t)item->in;

	for (uint32_t i = wires->cell[cell]; i < wires->cell[cell + 1]; i++) {
		uint64_t share = passed(wires->piece[i].bytes, wires->r[cell], 0, item->bytes);

		add_path(w, &wires->piece[i].path, share, item->start_ns, item->end_ns);
	}
}

int hoccl_fill_windows(struct hoccl_fill *f, const struct hoccl_wires *wires, const struct hoccl_list *list,
		       struct hoccl_windows *out)
{
	uint64_t least = LEAST_WINDOW_STARTS * f->machine->start_ns;
	uint64_t count = list->end_ns / (least > LEAST_WINDOW_NS ? least : LEAST_WINDOW_NS);
	size_t gpus = (size_t)wires->layout->gpus;
	struct windows w = {.wires = wires};
	int status = 0;

	w.count = count > MOST_WINDOWS ? MOST_WINDOWS : (uint32_t)(count ? count : 1);
	w.ns = list->end_ns / w.count + 1;
	w.count = list->end_ns ? w.count : 0;
	w.load = calloc((size_t)(w.count + 1) * gpus, sizeof(*w.load));
	if (!w.load)
		return HOCCL_PLAN_MEMORY;
	for (size_t i = 0; i < list->items; i++)
		add_wire(&w, &list->item[i]);
	for (uint32_t k = 0; k < w.count && !status; k++)
		status = hoccl_fill_stage(f, k, w.ns, w.load + (size_t)k * gpus, true);
	free(w.load);
	*out = (struct hoccl_windows){.count = w.count, .ns = w.ns};
	if (!status)
		status = hoccl_fill_extra(f, w.count, &out->extra);
	out->end_ns = list->end_ns + out->extra.loose_ns;
	return status;
}
