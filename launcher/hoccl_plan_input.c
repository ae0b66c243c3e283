/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What hoccl-plan reads: a topology and a matrix. Every fault names file and line.
 *
 * A topology file, one statement a line, # begins a comment:
 *      node 0-3 8        the GPUs of a node: numbers and ranges
 *      pair 0 1          symmetric GPUs; without any statement neighbours in a node are paired
 *      host 2            staged in host memory: no symmetric GPU
 *      outside 3         its symmetric GPU is no rank
 * A matrix: a row of numbers a line, separated by one comma or semicolon or by blanks, with K, M, G, T or Ki, Mi, Gi, Ti.
 */
#include "hoccl_plan_tool.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define UNSET (-3)

struct reader {
	FILE *file;
	const char *path;
	char *text;
	size_t room;
	int line, status;	/* status: a line that cannot be read */
	struct hoccl_plan_error *error;
};

struct topology {
	int gpus, nodes;
	int node[HOCCL_SCHED_MAX_GPUS], line[HOCCL_SCHED_MAX_GPUS];	/* node -1: not mentioned yet */
	int pair[HOCCL_SCHED_MAX_GPUS], pair_line[HOCCL_SCHED_MAX_GPUS];
};

/* `nor`: what the path could have been instead. */
static int reader_open(struct reader *r, const char *path, const char *nor, struct hoccl_plan_error *error)
{
	*r = (struct reader){.path = path, .error = error};
	r->file = fopen(path, "r");
	if (!r->file)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s: %s%s", path, strerror(errno),
				       errno == ENOENT ? nor : "");
	return 0;
}

/* The next line that is not empty, without comment and byte order mark; false at the end. */
static bool reader_next(struct reader *r)
{
	ssize_t got;

	while ((got = getline(&r->text, &r->room, r->file)) >= 0) {
		r->line++;
		if (memchr(r->text, '\0', (size_t)got)) {
			r->status = hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: a byte is zero, so this is no text",
						    r->path, r->line);
			return false;
		}
		if (r->line == 1 && !strncmp(r->text, "\xef\xbb\xbf", 3))
			memmove(r->text, r->text + 3, (size_t)got - 2);
		r->text[strcspn(r->text, "#\r\n")] = '\0';
		if (r->text[strspn(r->text, " \t")])
			return true;
	}
	return false;
}

static bool reader_whole(const struct reader *r)
{
	return !r->status && !ferror(r->file);
}

/* At the end: 0, or the error that ended it (a directory, a disk fault). */
static int reader_close(struct reader *r, int status)
{
	status = status ? status : r->status;
	if (!status && ferror(r->file))
		status = hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s: %s", r->path, strerror(errno));
	fclose(r->file);
	free(r->text);
	return status;
}

static bool parse_gpu(const char **text, int *gpu)
{
	char *end;

	if (!isdigit((unsigned char)**text))
		return false;
	errno = 0;
	long value = strtol(*text, &end, 10);

	if (errno || value >= HOCCL_SCHED_MAX_GPUS)
		return false;
	*gpu = (int)value;
	*text = end;
	return true;
}

static int bad_word(const struct reader *r, const char *word)
{
	return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: \"%.40s\" is not a GPU number from 0 to %d", r->path,
			       r->line, word, HOCCL_SCHED_MAX_GPUS - 1);
}

static int read_node(const struct reader *r, struct topology *t, char *words)
{
	char *save = NULL;

	for (char *word = strtok_r(words, " \t,", &save); word; word = strtok_r(NULL, " \t,", &save)) {
		const char *p = word;
		int from, to;

		if (!parse_gpu(&p, &from))
			return bad_word(r, word);
		to = from;
		if (*p == '-' && (p++, !parse_gpu(&p, &to)))
			return bad_word(r, word);
		if (*p || to < from)
			return bad_word(r, word);
		for (int g = from; g <= to; g++) {
			if (t->node[g] >= 0)
				return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: GPU %d is already in the "
						       "node of line %d", r->path, r->line, g, t->line[g]);
			t->node[g] = t->nodes;
			t->line[g] = r->line;
			t->gpus = g >= t->gpus ? g + 1 : t->gpus;
		}
	}
	t->nodes++;
	return 0;
}

static int set_pair(const struct reader *r, struct topology *t, int gpu, int pair)
{
	if (t->pair[gpu] != UNSET)
		return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: GPU %d already has a symmetric GPU from line "
				       "%d", r->path, r->line, gpu, t->pair_line[gpu]);
	t->pair[gpu] = pair;
	t->pair_line[gpu] = r->line;
	return 0;
}

static int read_pair(const struct reader *r, struct topology *t, char *words)
{
	char *save = NULL, *a = strtok_r(words, " \t,-", &save), *b = strtok_r(NULL, " \t,-", &save);
	const char *p = a, *q = b;
	int first, second;

	if (!a || !b || strtok_r(NULL, " \t,-", &save))
		return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: pair takes two GPUs", r->path, r->line);
	if (!parse_gpu(&p, &first) || *p)
		return bad_word(r, a);
	if (!parse_gpu(&q, &second) || *q)
		return bad_word(r, b);
	if (first == second)
		return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: GPU %d cannot be its own symmetric GPU",
				       r->path, r->line, first);
	int status = set_pair(r, t, first, second);

	return status ? status : set_pair(r, t, second, first);
}

static int read_lone(const struct reader *r, struct topology *t, char *words, int kind)
{
	char *save = NULL;

	for (char *word = strtok_r(words, " \t,", &save); word; word = strtok_r(NULL, " \t,", &save)) {
		const char *p = word;
		int gpu;

		if (!parse_gpu(&p, &gpu) || *p)
			return bad_word(r, word);
		int status = set_pair(r, t, gpu, kind);

		if (status)
			return status;
	}
	return 0;
}

static int read_statement(const struct reader *r, struct topology *t)
{
	char *word = r->text + strspn(r->text, " \t"), *rest = word + strcspn(word, " \t");

	if (*rest)
		*rest++ = '\0';
	if (!strcmp(word, "node"))
		return read_node(r, t, rest);
	if (!strcmp(word, "pair"))
		return read_pair(r, t, rest);
	if (!strcmp(word, "host"))
		return read_lone(r, t, rest, HOCCL_PAIR_HOST);
	if (!strcmp(word, "outside"))
		return read_lone(r, t, rest, HOCCL_PAIR_OUTSIDE);
	return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: \"%.40s\" is not node, pair, host or outside",
			       r->path, r->line, word);
}

/* GPUs that are only paired, gaps in the numbers, pairs across nodes. */
static int check_topology(const struct reader *r, const struct topology *t)
{
	for (int g = 0; g < HOCCL_SCHED_MAX_GPUS; g++) {
		if (t->pair[g] != UNSET && t->node[g] < 0)
			return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: GPU %d is in no node", r->path,
					       t->pair_line[g], g);
		if (g < t->gpus && t->node[g] < 0)
			return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s: GPU %d is missing: they must be "
					       "numbered 0 to %d", r->path, g, t->gpus - 1);
		if (t->pair[g] >= 0 && t->node[t->pair[g]] >= 0 && t->node[g] != t->node[t->pair[g]])
			return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: GPUs %d and %d are in different "
					       "nodes", r->path, t->pair_line[g], g, t->pair[g]);
	}
	if (!t->gpus)
		return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s: there is no node", r->path);
	return 0;
}

/* Neighbours of a node that no statement mentions are paired. */
static void pair_rest(struct topology *t, int lone, bool pairs)
{
	for (int n = 0; n < t->nodes; n++) {
		int waiting = -1;

		for (int g = 0; g < t->gpus; g++) {
			if (t->node[g] != n || t->pair[g] != UNSET)
				continue;
			t->pair[g] = lone;
			if (!pairs)
				continue;
			if (waiting >= 0) {
				t->pair[g] = waiting;
				t->pair[waiting] = g;
				waiting = -1;
			} else {
				waiting = g;
			}
		}
	}
}

static int read_topology(struct topology *t, const char *path, struct hoccl_plan_error *error)
{
	struct reader r;
	int status = reader_open(&r, path, ", nor is it NODESxGPUS", error);

	if (status)
		return status;
	for (int g = 0; g < HOCCL_SCHED_MAX_GPUS; g++) {
		t->node[g] = -1;
		t->pair[g] = UNSET;
	}
	while (!status && reader_next(&r))
		status = read_statement(&r, t);
	if (!status && reader_whole(&r))
		status = check_topology(&r, t);
	return reader_close(&r, status);
}

static bool is_xml(const char *path)
{
	char begin[6] = "";
	FILE *file = fopen(path, "r");

	if (!file)
		return false;
	size_t got = fread(begin, 1, 5, file);

	fclose(file);
	return got == 5 && !strcmp(begin, "<?xml");
}

/* One machine several times. */
static int copy_machine(struct hoccl_layout *layout, const struct topology *t, int copies,
			struct hoccl_plan_error *error)
{
	int node[HOCCL_SCHED_MAX_GPUS], pair[HOCCL_SCHED_MAX_GPUS], gpus = 0;

	if (copies < 1 || (int64_t)t->gpus * copies > HOCCL_SCHED_MAX_GPUS)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%d x %d GPUs: between 1 and %d can be planned", copies,
				       t->gpus, HOCCL_SCHED_MAX_GPUS);
	for (int k = 0; k < copies; k++)
		for (int g = 0; g < t->gpus; g++, gpus++) {
			node[gpus] = k * t->nodes + t->node[g];
			pair[gpus] = t->pair[g] < 0 ? t->pair[g] : k * t->gpus + t->pair[g];
		}
	return hoccl_layout_make(layout, gpus, node, pair, error);
}

int hoccl_input_topology(struct hoccl_layout *layout, const char *text, int copies, int lone, bool pairs,
			 struct hoccl_plan_error *error)
{
	struct topology t = {0};
	int nodes, each, used = 0, status = 0;

	if (sscanf(text, "%9dx%9d%n", &nodes, &each, &used) == 2 && !text[used]) {
		if (nodes < 1 || each < 1 || (int64_t)nodes * each > HOCCL_SCHED_MAX_GPUS)
			return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s: between 1 and %d GPUs can be planned", text,
					       HOCCL_SCHED_MAX_GPUS);
		t.gpus = nodes * each;
		t.nodes = nodes;
		for (int g = 0; g < t.gpus; g++) {
			t.node[g] = g / each;
			t.pair[g] = UNSET;
		}
	} else if (is_xml(text)) {
		t.nodes = 1;
		status = hoccl_input_hwloc(text, &t.gpus, t.pair, lone, error);
		for (int g = 0; g < t.gpus && !pairs; g++)
			t.pair[g] = UNSET;
	} else {
		status = read_topology(&t, text, error);
	}
	if (status)
		return status;
	pair_rest(&t, lone, pairs);
	return copy_machine(layout, &t, copies, error);
}

/* The next entry, NULL at the end; "" where two commas meet. A comma behind the last one counts for nothing. */
static char *next_entry(char **at)
{
	char *word = *at + strspn(*at, " \t"), *end = word + strcspn(word, ",; \t"), *part = end + strspn(end, " \t");

	if (!*word)
		return NULL;
	*at = *part == ',' || *part == ';' ? part + 1 : part;
	*end = '\0';
	return word;
}

static int read_row(const struct reader *r, int row, int gpus, uint64_t *entry, uint64_t *column)
{
	char *at = r->text;
	int count = 0;
	uint64_t sum = 0;

	for (char *word = next_entry(&at); word; word = next_entry(&at), count++) {
		if (count == gpus)
			return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: more than %d entries", r->path,
					       r->line, gpus);
		if (!hoccl_bytes_parse(word, &entry[count]))
			return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: entry %d, \"%.40s\", is not a number "
					       "of bytes", r->path, r->line, count, word);
		if (entry[count] > (uint64_t)INT64_MAX - sum || entry[count] > (uint64_t)INT64_MAX - column[count])
			return hoccl_plan_fail(r->error, HOCCL_PLAN_OVERFLOW, "%s:%d: C[%d,%d] = %" PRIu64 ": the sum of "
					       "its line passes 2^63 - 1", r->path, r->line, row, count, entry[count]);
		sum += entry[count];
		column[count] += entry[count];
	}
	if (count < gpus)
		return hoccl_plan_fail(r->error, HOCCL_PLAN_ARGUMENT, "%s:%d: %d entries, the topology has %d GPUs", r->path,
				       r->line, count, gpus);
	return 0;
}

int hoccl_input_matrix(const char *path, int gpus, uint64_t *c, struct hoccl_plan_error *error)
{
	uint64_t column[HOCCL_SCHED_MAX_GPUS] = {0};
	struct reader r;
	int rows = 0, status = reader_open(&r, path, ", nor is it a pattern (--help names them)", error);

	if (status)
		return status;
	for (; !status && reader_next(&r); rows++) {
		if (rows == gpus)
			status = hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s:%d: more than %d rows", path, r.line, gpus);
		else
			status = read_row(&r, rows, gpus, c + (size_t)rows * (size_t)gpus, column);
	}
	if (!status && reader_whole(&r) && rows < gpus)
		status = hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%s:%d: the file ends after %d rows, the topology has %d "
					 "GPUs", path, r.line, rows, gpus);
	return reader_close(&r, status);
}
