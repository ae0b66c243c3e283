/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured beside what hoccl-plan --simulate predicts of the way the runtime does it (turns) and of the best plan, and beside
 * one another.
 *
 *   examples/NAME_perf -J ──▶ LABEL=FILE ──┬─▶ the rows that say who sends how much to whom ──▶ hoccl-plan ──▶ measured / simulated
 *   nccl_rate PREFIX ───────▶ LABEL=FILE ──┴─▶ a line for each pattern, number of ranks and size, a column for each label
 *
 * Rows of the first label are simulated, where HOCCL-PLAN can be run, on one node with as many GPUs as there were ranks. In place
 * a rank's own piece does not move. Rows whose measured time is more than 10 % off the simulated one are marked and counted: then
 * the model, or the code, is wrong.
 *
 * usage: compare [-p HOCCL-PLAN] [-m MACHINE] [-J FILE] LABEL[:PATTERN]=FILE…     PATTERN: instead of NAME
 * Status 1: something cannot be read or simulated. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAR_OFF 0.10

/* One measured time. */
struct cell {
    const char *label, *pattern; /* pattern: the program's name without _perf */
    json_int_t ranks, bytes;
    bool in_place;
    double time_us, busbw;
    double simulated_us, planned_us; /* as the runtime does it, and by a plan; 0: nobody said who sends what */
};

static struct cell *cells;
static size_t cell_count;
static const char **labels;
static size_t label_count;
static const char *plan = "./hoccl-plan", *machine = "h200", *json_path;

static _Noreturn void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "compare: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static void *room(void *old, size_t count, size_t size)
{
    void *p = reallocarray(old, count, size);
    if (!p)
        fail("no memory for %zu of %zu bytes", count, size);
    return p;
}

static char *copy(const char *text, size_t length)
{
    char *p = room(NULL, length + 1, 1);
    memcpy(p, text, length);
    p[length] = 0;
    return p;
}

/* ---- simulation -------------------------------------------------------------------------------------------------- */

/* A line of numbers, without the one on the diagonal if it stays where it is. */
static void write_line(FILE *file, const char *line, size_t row, bool in_place)
{
    char *text = copy(line, strlen(line)), *save = NULL;
    size_t column = 0;
    for (char *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save), column++)
        fprintf(file, "%s%s", column ? "," : "", in_place && row == column ? "0" : word);
    fprintf(file, "\n");
    free(text);
}

static void write_matrix(const char *path, const json_t *traffic, bool in_place)
{
    FILE *file = fopen(path, "w");
    json_t *line;
    size_t row;
    if (!file)
        fail("%s: %m", path);
    json_array_foreach (traffic, row, line)
        if (json_is_string(line))
            write_line(file, json_string_value(line), row, in_place);
    if (fclose(file))
        fail("%s: %m", path);
}

/* What hoccl-plan says of the schedule that it chooses. */
static double simulated_us(const json_t *result)
{
    const char *chosen = json_string_value(json_object_get(result, "chosen"));
    const json_t *schedule = chosen ? json_object_get(json_object_get(result, "schedules"), chosen) : NULL;
    return 1e-3 * json_number_value(json_object_get(schedule, "simulated_ns"));
}

static double simulate(const json_t *traffic, bool in_place, const char *method)
{
    char path[] = "/tmp/compare-XXXXXX", *command;
    json_error_t error;
    int file = mkstemp(path);
    if (file < 0 || close(file))
        fail("%s: %m", path);
    write_matrix(path, traffic, in_place);
    if (asprintf(&command, "'%s' -m '%s' --method %s --simulate --json 1x%zu '%s'", plan, machine, method, json_array_size(traffic),
                 path) < 0)
        fail("no memory for a command");
    FILE *output = popen(command, "r");
    if (!output)
        fail("%s: %m", command);
    json_t *result = json_loadf(output, 0, &error);
    if (pclose(output) || !result)
        fail("%s has failed%s%s", command, result ? "" : ": ", result ? "" : error.text);
    unlink(path);
    free(command);
    double us = simulated_us(result);
    json_decref(result);
    return us;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static const char *take_label(const char *text, size_t length)
{
    for (size_t i = 0; i < label_count; i++)
        if (strlen(labels[i]) == length && !strncmp(labels[i], text, length))
            return labels[i];
    labels = room(labels, label_count + 1, sizeof *labels);
    return labels[label_count++] = copy(text, length);
}

static void add(struct cell cell, const json_t *result, const json_t *traffic)
{
    cell.time_us = json_number_value(json_object_get(result, "time_us"));
    cell.busbw = json_number_value(json_object_get(result, "busbw_GBps"));
    if (cell.time_us <= 0)
        fail("%s: %s of %" JSON_INTEGER_FORMAT " bytes has no time_us", cell.label, cell.pattern, cell.bytes);
    if (json_array_size(traffic) > 1 && cell.label == labels[0] && !access(plan, X_OK)) {
        cell.simulated_us = simulate(traffic, cell.in_place, "turns");
        cell.planned_us = simulate(traffic, cell.in_place, "auto");
    }
    cells = room(cells, cell_count + 1, sizeof *cells);
    cells[cell_count++] = cell;
}

static void read_file(const char *argument)
{
    const char *equal = strchr(argument, '='), *colon = strchr(argument, ':');
    json_error_t error;
    size_t i;
    json_t *row;
    if (!equal)
        fail("%s: LABEL=FILE is needed", argument);
    json_t *all = json_load_file(equal + 1, 0, &error);
    const char *program = json_string_value(json_object_get(all, "program"));
    if (!program)
        fail("%s: %s", equal + 1, all ? "no \"program\" in it" : error.text);
    const char *name = colon && colon < equal ? colon + 1 : program, *name_end = name == program ? strstr(program, "_perf") : equal;
    struct cell cell = {.label = take_label(argument, (size_t)((name == program ? equal : colon) - argument)),
                        .pattern = copy(name, name_end ? (size_t)(name_end - name) : strlen(name)),
                        .ranks = json_integer_value(json_object_get(all, "ranks"))};
    json_array_foreach (json_object_get(all, "rows"), i, row) {
        const json_t *traffic = json_object_get(row, "traffic"), *in_place = json_object_get(row, "in_place");
        cell.bytes = json_integer_value(json_object_get(row, "bytes"));
        cell.in_place = false;
        add(cell, row, traffic);
        cell.in_place = true;
        if (in_place)
            add(cell, in_place, traffic);
    }
    json_decref(all);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_start(const struct cell *c)
{
    printf("%-16s %5" JSON_INTEGER_FORMAT " %12" JSON_INTEGER_FORMAT " %-8s", c->pattern, c->ranks, c->bytes,
           c->in_place ? "in place" : "");
}

static bool is_far_off(const struct cell *c)
{
    return fabs(c->time_us / c->simulated_us - 1) > FAR_OFF;
}

static void print_predictions(void)
{
    size_t simulated = 0, off = 0;
    printf("# measured beside hoccl-plan -m %s --simulate, us\n%-16s %5s %12s %-8s %-12s %12s %12s %7s %12s\n", machine, "# pattern",
           "ranks", "bytes", "", "", "measured", "simulated", "ratio", "by a plan");
    for (size_t i = 0; i < cell_count; i++) {
        const struct cell *c = &cells[i];
        if (c->simulated_us <= 0)
            continue;
        simulated++;
        off += is_far_off(c);
        print_start(c);
        printf(" %-12s %12.1f %12.1f %7.2f %12.1f%s\n", c->label, c->time_us, c->simulated_us, c->time_us / c->simulated_us, c->planned_us,
               is_far_off(c) ? "  MORE THAN 10 % OFF" : "");
    }
    printf("# %zu of %zu differ by more than 10 %%%s%s\n", off, simulated, access(plan, X_OK) ? "; there is no " : "",
           access(plan, X_OK) ? plan : "");
}

static bool same_line(const struct cell *a, const struct cell *b)
{
    return !strcmp(a->pattern, b->pattern) && a->ranks == b->ranks && a->bytes == b->bytes && a->in_place == b->in_place;
}

/* The last of this label on the line of `like`, or NULL. */
static const struct cell *find(const struct cell *like, const char *label)
{
    for (size_t i = cell_count; i-- > 0;)
        if (cells[i].label == label && same_line(&cells[i], like))
            return &cells[i];
    return NULL;
}

static bool is_first_of_line(size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (same_line(&cells[k], &cells[i]))
            return false;
    return true;
}

/* A column for each label: its rate, and the first one's beside it. */
static void print_lines(void)
{
    printf("# busbw in GB/s; in brackets: %s / that\n%-16s %5s %12s %-8s", label_count ? labels[0] : "", "# pattern", "ranks", "bytes", "");
    for (size_t l = 0; l < label_count; l++)
        printf(" %17s", labels[l]);
    printf("\n");
    for (size_t i = 0; i < cell_count; i++) {
        if (!is_first_of_line(i))
            continue;
        const struct cell *own = find(&cells[i], labels[0]);
        print_start(&cells[i]);
        for (size_t l = 0; l < label_count; l++) {
            const struct cell *c = find(&cells[i], labels[l]);
            char text[32] = "-";
            if (c && own && own != c)
                snprintf(text, sizeof text, "%.1f (%.2f)", c->busbw, c->time_us / own->time_us);
            else if (c)
                snprintf(text, sizeof text, "%.1f", c->busbw);
            printf(" %17s", text);
        }
        printf("\n");
    }
}

static void write_json(void)
{
    json_t *all = json_array();
    for (size_t i = 0; i < cell_count; i++) {
        const struct cell *c = &cells[i];
        json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:b, s:f, s:f}", "label", c->label, "pattern", c->pattern, "ranks", c->ranks, "bytes",
                              c->bytes, "in_place", c->in_place, "time_us", c->time_us, "busbw_GBps", c->busbw);
        if (c->simulated_us > 0) {
            json_object_set_new(o, "simulated_us", json_real(c->simulated_us));
            json_object_set_new(o, "planned_us", json_real(c->planned_us));
            json_object_set_new(o, "measured_to_simulated", json_real(c->time_us / c->simulated_us));
        }
        json_array_append_new(all, o);
    }
    if (json_dump_file(all, json_path, JSON_INDENT(1) | JSON_REAL_PRECISION(6)))
        fail("%s cannot be written", json_path);
    json_decref(all);
}

int main(int argc, char **argv)
{
    int letter;
    while ((letter = getopt(argc, argv, "p:m:J:")) != -1) {
        if (letter == '?') {
            fprintf(stderr, "usage: compare [-p HOCCL-PLAN] [-m MACHINE] [-J FILE] LABEL[:PATTERN]=FILE...\n");
            return 2;
        }
        *(letter == 'p' ? &plan : letter == 'm' ? &machine : &json_path) = optarg;
    }
    for (int i = optind; i < argc; i++)
        read_file(argv[i]);
    print_predictions();
    printf("\n");
    print_lines();
    if (json_path)
        write_json();
    return 0;
}
