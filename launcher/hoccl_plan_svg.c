/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline of the chosen plan as the simulation runs it: a row for each GPU and engine that does anything.
 * Colours: a hue for each peer on the other side of the flow; traffic within the node is paler and hatched by a border.
 * Neighbouring chunks of one flow are one bar; the gaps between bars are time in which the engine did nothing.
 */
#include "hoccl_plan_tool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_GPUS 64
#define LEFT 96
#define WIDTH 1200
#define TOP 64
#define ROW 15
#define GAP 7	/* between GPUs */

struct bar {
	struct hoccl_sim_event event;
	bool open;
};

struct drawing {
	const struct hoccl_tool *tool;
	FILE *file;
	uint64_t end_ns;
	bool used[MOST_GPUS][HOCCL_SIM_ENGINES];
	int y[MOST_GPUS][HOCCL_SIM_ENGINES], height;
	struct bar last[MOST_GPUS][HOCCL_SIM_ENGINES];
};

static const enum hoccl_sim_engine row_order[HOCCL_SIM_ENGINES] = {
	HOCCL_SIM_PUSH, HOCCL_SIM_D2H, HOCCL_SIM_WIRE_OUT, HOCCL_SIM_WIRE_IN, HOCCL_SIM_H2D, HOCCL_SIM_PULL,
};

static const char *const engine_names[HOCCL_SIM_ENGINES] = {"push", "pull", "D2H", "H2D", "NIC out", "NIC in"};

static double x_of(const struct drawing *d, uint64_t ns)
{
	return LEFT + (double)WIDTH * (double)ns / (double)(d->end_ns ? d->end_ns : 1);
}

/* The other end of the flow, as seen from the row. */
static int peer_of(const struct hoccl_sim_event *e)
{
	bool incoming = e->engine == HOCCL_SIM_WIRE_IN || e->engine == HOCCL_SIM_PULL || e->engine == HOCCL_SIM_H2D;

	return incoming ? e->src : e->dst;
}

static void draw_bar(struct drawing *d, const struct bar *bar)
{
	const struct hoccl_sim_event *e = &bar->event;
	double x = x_of(d, e->start_ns), width = x_of(d, e->end_ns) - x;
	int peer = peer_of(e), y = d->y[e->gpu][e->engine];
	int hue = (int)((unsigned int)peer * 360 / (unsigned int)d->tool->layout.gpus);

	fprintf(d->file, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"hsl(%d,%d%%,%d%%)\"", x, y,
		width > 0.3 ? width : 0.3, ROW - 2, hue, e->native ? 35 : 70, e->native ? 82 : 58);
	if (e->native && width > 2)
		fprintf(d->file, " stroke=\"hsl(%d,35%%,50%%)\" stroke-width=\"0.7\"", hue);
	fprintf(d->file, "><title>GPU %d %s: %d to %d, %s, stage %" PRIu32 ", %" PRIu64 " bytes, %.1f to %.1f us"
		"</title></rect>\n", e->gpu, engine_names[e->engine], e->src, e->dst,
		e->native ? "within the node" : "between nodes", e->stage, e->bytes, (double)e->start_ns / 1e3,
		(double)e->end_ns / 1e3);
	if (width > 16)
		fprintf(d->file, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x + width / 2,
			y + ROW - 5, peer);
}

static void flush_bar(struct drawing *d, int gpu, int engine)
{
	struct bar *bar = &d->last[gpu][engine];

	if (bar->open)
		draw_bar(d, bar);
	bar->open = false;
}

/* First run: which rows there are. */
static void note_row(void *context, const struct hoccl_sim_event *e)
{
	struct drawing *d = context;

	d->used[e->gpu][e->engine] = true;
	d->end_ns = e->end_ns > d->end_ns ? e->end_ns : d->end_ns;
}

/* Second run: bars; a chunk that follows its flow's last one almost at once makes that longer. */
static void add_chunk(void *context, const struct hoccl_sim_event *e)
{
	struct drawing *d = context;
	struct bar *bar = &d->last[e->gpu][e->engine];
	struct hoccl_sim_event *last = &bar->event;

	if (bar->open && last->src == e->src && last->dst == e->dst && last->native == e->native &&
	    last->stage == e->stage && e->start_ns - last->end_ns < d->end_ns / 2000) {
		last->end_ns = e->end_ns;
		last->bytes += e->bytes;
		return;
	}
	flush_bar(d, e->gpu, (int)e->engine);
	bar->event = *e;
	bar->open = true;
}

static void place_rows(struct drawing *d)
{
	int y = TOP;

	for (int g = 0; g < d->tool->layout.gpus; g++) {
		for (int i = 0; i < HOCCL_SIM_ENGINES; i++)
			if (d->used[g][row_order[i]]) {
				d->y[g][row_order[i]] = y;
				y += ROW;
			}
		y += GAP;
	}
	d->height = y + 30;
}

/* A tick distance of 1, 2 or 5 × 10^k that gives at most 12 ticks. */
static uint64_t tick_ns(uint64_t end_ns)
{
	uint64_t tick = 1;

	for (int i = 0; end_ns / tick > 12; i++)
		tick = i % 3 == 1 ? tick / 2 * 5 : tick * 2;
	return tick;
}

static void draw_axis(const struct drawing *d)
{
	uint64_t tick = tick_ns(d->end_ns);

	for (uint64_t ns = 0; ns <= d->end_ns; ns += tick) {
		double x = x_of(d, ns);

		fprintf(d->file, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#ccc\"/>\n", x, TOP - 6, x,
			d->height - 28);
		fprintf(d->file, "<text class=\"axis\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g %s</text>\n", x,
			d->height - 14, d->end_ns > 2000000 ? (double)ns / 1e6 : (double)ns / 1e3,
			d->end_ns > 2000000 ? "ms" : "us");
	}
}

static void draw_labels(const struct drawing *d)
{
	for (int g = 0; g < d->tool->layout.gpus; g++) {
		bool first = true;

		for (int i = 0; i < HOCCL_SIM_ENGINES; i++) {
			int engine = row_order[i], y = d->y[g][engine];

			if (!d->used[g][engine])
				continue;
			if (first)
				fprintf(d->file, "<text class=\"gpu\" x=\"4\" y=\"%d\">GPU %d</text>\n", y + ROW - 4, g);
			first = false;
			fprintf(d->file, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n"
				"<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f4f4f4\"/>\n", LEFT - 5,
				y + ROW - 4, engine_names[engine], LEFT, y, WIDTH, ROW - 2);
		}
	}
}

/* Text from outside, as XML allows it. */
static void write_escaped(FILE *file, const char *text)
{
	for (; *text; text++)
		if (strchr("<>&\"", *text) || (unsigned char)*text < ' ')
			fprintf(file, "&#%d;", (unsigned char)*text < ' ' ? ' ' : *text);
		else
			fputc(*text, file);
}

static void draw_head(const struct drawing *d)
{
	const struct hoccl_tool *t = d->tool;
	const struct hoccl_tool_result *r = &t->result[t->chosen];

	fprintf(d->file, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
		"<style>text{font:9px sans-serif;fill:#222}.axis{font-size:10px}.gpu{font-size:11px;font-weight:bold}"
		".title{font-size:15px;font-weight:bold}</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
		LEFT + WIDTH + 40, d->height, LEFT + WIDTH + 40, d->height);
	fprintf(d->file, "<text class=\"title\" x=\"8\" y=\"22\">");
	write_escaped(d->file, t->matrix);
	fprintf(d->file, " on ");
	write_escaped(d->file, t->topology);
	fprintf(d->file, ", %s, %s: simulated %.3f ms, planned %.3f ms, bound %.3f ms</text>\n", t->machine.name, r->name,
		(double)d->end_ns / 1e6, (double)r->plan->makespan_ns / 1e6, (double)r->plan->relay_bound_ns / 1e6);
	fprintf(d->file, "<text class=\"axis\" x=\"8\" y=\"40\">A bar's number and hue are the GPU at the other end of its "
		"flow. Strong colours: between nodes; pale with a border: within the node.</text>\n");
}

static int draw(struct drawing *d, struct hoccl_plan_error *error)
{
	const struct hoccl_tool *t = d->tool;
	const struct hoccl_plan *plan = t->result[t->chosen].plan;
	struct hoccl_sim_options options = {t->overlap, t->chosen == HOCCL_TOOL_TURNS, note_row, d};
	struct hoccl_sim_result result;
	int status = hoccl_sim_run(plan, &t->layout, &t->machine, &options, &result, error);

	if (status)
		return status;
	place_rows(d);
	draw_head(d);
	draw_labels(d);
	draw_axis(d);
	options.trace = add_chunk;
	status = hoccl_sim_run(plan, &t->layout, &t->machine, &options, &result, error);
	for (int g = 0; g < t->layout.gpus; g++)
		for (int e = 0; e < HOCCL_SIM_ENGINES; e++)
			flush_bar(d, g, e);
	fprintf(d->file, "</svg>\n");
	return status;
}

int hoccl_print_svg(const struct hoccl_tool *t, const char *path, struct hoccl_plan_error *error)
{
	if (t->layout.gpus > MOST_GPUS)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "--svg draws at most %d GPUs, not %d", MOST_GPUS,
				       t->layout.gpus);
	struct drawing *d = calloc(1, sizeof(*d));
	int status;

	if (!d)
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for %s", path);
	d->tool = t;
	d->file = fopen(path, "w");
	if (d->file) {
		status = draw(d, error);
		if (fclose(d->file) && !status)
			status = hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s: %s", path, strerror(errno));
	} else {
		status = hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s: %s", path, strerror(errno));
	}
	free(d);
	return status;
}
