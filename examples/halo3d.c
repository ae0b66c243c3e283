/* SPDX-License-Identifier: Apache-2.0 */
/* A stencil code in miniature: Jacobi steps of a 7-point stencil on a periodic 3-D grid, split into one block a rank.
 * In each step the six faces of the block go to the neighbours on a stream of their own while the inside is updated,
 * which needs nobody; when the neighbours' faces are there, the cells at the surface follow:
 *
 *   communication stream   │ faces to GPU │ group: 6 × Send, 6 × Recv │ ghosts from GPU │
 *   computation            │ inside of the block ................................│ wait │ surface │
 *
 * The cells are computed by the CPU, from pinned memory, for an emulated GPU runs no kernels; with kernels on a second
 * stream the communication would be the same. At the end rank 0 gathers the blocks (HOCCL_Gatherv), computes all of it
 * alone, and compares every bit. */
#include "common.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: mpirun -np N halo3d [options]\n"
    "  -s, --size N           cells in each direction (96)\n"
    "  -n, --steps N          (20)\n"
    "      --spoil N          rank 0 spoils one ghost cell in step N, to see that it is noticed\n"
    "  -h, --help\n";

enum side { LOW, HIGH };

/* A block of cells with a layer of ghosts around it. */
struct field {
    size_t n[3];
    double *cells;
};

struct face {
    size_t count;
    CUdeviceptr out, in;
    double *out_host, *in_host; /* pinned */
};

/* A rank's part of the grid: where it is, what it holds, who is beside it. */
struct part {
    int dims[3], at[3], neighbour[3][2];
    size_t first[3], n[3], global;
    struct face face[3][2];
    CUstream stream;
};

/* ---- The grid of ranks ---- */

/* As near to a cube as the number of ranks allows, the largest first (what MPI_Dims_create does). */
static void dims_create(int ranks, int dims[3])
{
    int best = -1;

    for (int a = 1; a <= ranks; a++)
        for (int b = 1; b <= a && a * b <= ranks; b++) {
            int c = ranks / (a * b);
            if (a * b * c == ranks && c <= b && (best < 0 || a - c < best)) {
                best = a - c;
                dims[0] = a;
                dims[1] = b;
                dims[2] = c;
            }
        }
}

static int rank_at(const struct part *part, int x, int y, int z)
{
    const int *d = part->dims;

    return ((z + d[2]) % d[2] * d[1] + (y + d[1]) % d[1]) * d[0] + (x + d[0]) % d[0];
}

static void part_place(struct part *part, int rank, int ranks, size_t global)
{
    dims_create(ranks, part->dims);
    part->global = global;
    part->at[0] = rank % part->dims[0];
    part->at[1] = rank / part->dims[0] % part->dims[1];
    part->at[2] = rank / part->dims[0] / part->dims[1];
    for (int d = 0; d < 3; d++) {
        size_t at = (size_t)part->at[d], of = (size_t)part->dims[d];
        part->first[d] = global * at / of;
        part->n[d] = global * (at + 1) / of - part->first[d];
        for (int side = LOW; side <= HIGH; side++) {
            int c[3] = {part->at[0], part->at[1], part->at[2]};
            c[d] += side == LOW ? -1 : 1;
            part->neighbour[d][side] = rank_at(part, c[0], c[1], c[2]);
        }
    }
}

static void part_open(struct part *part)
{
    check_cuda(cuStreamCreate(&part->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (int d = 0; d < 3; d++)
        for (int side = LOW; side <= HIGH; side++) {
            struct face *face = &part->face[d][side];
            face->count = part->n[(d + 1) % 3] * part->n[(d + 2) % 3];
            check_cuda(cuMemAlloc(&face->out, face->count * sizeof(double)), "cuMemAlloc");
            check_cuda(cuMemAlloc(&face->in, face->count * sizeof(double)), "cuMemAlloc");
            check_cuda(cuMemAllocHost((void **)&face->out_host, face->count * sizeof(double)), "cuMemAllocHost");
            check_cuda(cuMemAllocHost((void **)&face->in_host, face->count * sizeof(double)), "cuMemAllocHost");
        }
}

static void part_close(struct part *part)
{
    for (int d = 0; d < 3; d++)
        for (int side = LOW; side <= HIGH; side++) {
            check_cuda(cuMemFree(part->face[d][side].out), "cuMemFree");
            check_cuda(cuMemFree(part->face[d][side].in), "cuMemFree");
            check_cuda(cuMemFreeHost(part->face[d][side].out_host), "cuMemFreeHost");
            check_cuda(cuMemFreeHost(part->face[d][side].in_host), "cuMemFreeHost");
        }
    check_cuda(cuStreamDestroy(part->stream), "cuStreamDestroy");
}

/* ---- Cells ---- */

/* The cell x, y, z, counted from 1; 0 and n + 1 are ghosts. */
static double *cell(const struct field *f, size_t x, size_t y, size_t z)
{
    return f->cells + (z * (f->n[1] + 2) + y) * (f->n[0] + 2) + x;
}

static struct field field_new(const size_t n[3])
{
    struct field f = {{n[0], n[1], n[2]}, NULL};

    f.cells = calloc((n[0] + 2) * (n[1] + 2) * (n[2] + 2), sizeof *f.cells);
    if (!f.cells)
        fail("no memory for %zu x %zu x %zu cells", n[0], n[1], n[2]);
    return f;
}

/* Any values that are unlike each other. */
static void field_start(struct field *f, const size_t first[3], size_t global)
{
    for (size_t z = 1; z <= f->n[2]; z++)
        for (size_t y = 1; y <= f->n[1]; y++)
            for (size_t x = 1; x <= f->n[0]; x++) {
                uint64_t at = ((first[2] + z - 1) * global + first[1] + y - 1) * global + first[0] + x - 1;
                *cell(f, x, y, z) = (double)(at * 0x9e3779b97f4a7c15u >> 11) * 0x1p-53;
            }
}

/* The cells from low to high, both included. Compiled once, so that the same bits come out whoever computes. */
static void update(const struct field *from, struct field *to, const size_t low[3], const size_t high[3])
{
    for (size_t z = low[2]; z <= high[2]; z++)
        for (size_t y = low[1]; y <= high[1]; y++)
            for (size_t x = low[0]; x <= high[0]; x++)
                *cell(to, x, y, z) =
                    0.4 * *cell(from, x, y, z) +
                    0.1 * (*cell(from, x - 1, y, z) + *cell(from, x + 1, y, z) + *cell(from, x, y - 1, z) +
                           *cell(from, x, y + 1, z) + *cell(from, x, y, z - 1) + *cell(from, x, y, z + 1));
}

static void update_inside(const struct field *from, struct field *to)
{
    const size_t *n = from->n;

    update(from, to, (size_t[]){2, 2, 2}, (size_t[]){n[0] - 1, n[1] - 1, n[2] - 1});
}

/* What update_inside has left, no cell twice. */
static void update_surface(const struct field *from, struct field *to)
{
    size_t low[3] = {1, 1, 1}, high[3] = {from->n[0], from->n[1], from->n[2]};

    for (int d = 2; d >= 0; d--)
        for (int side = LOW; side <= HIGH && low[d] <= high[d]; side++) {
            size_t slab_low[3] = {low[0], low[1], low[2]}, slab_high[3] = {high[0], high[1], high[2]};
            slab_low[d] = slab_high[d] = side == LOW ? low[d]++ : high[d]--;
            update(from, to, slab_low, slab_high);
        }
}

/* The layer of a field at index `at` of direction d, to or from a face. */
static void copy_layer(const struct field *f, int d, size_t at, double *face, bool to_face)
{
    int e = (d + 1) % 3, g = (d + 2) % 3;
    size_t c[3];

    c[d] = at;
    for (c[g] = 1; c[g] <= f->n[g]; c[g]++)
        for (c[e] = 1; c[e] <= f->n[e]; c[e]++, face++)
            if (to_face)
                *face = *cell(f, c[0], c[1], c[2]);
            else
                *cell(f, c[0], c[1], c[2]) = *face;
}

/* ---- Communication ---- */

static void send_face(const struct job *job, const struct part *part, int d, enum side side)
{
    const struct face *face = &part->face[d][side];

    check_hoccl(
        HOCCL_Send((const void *)face->out, face->count, HOCCL_FP64, part->neighbour[d][side], job->comm, part->stream),
        "HOCCL_Send");
}

static void receive_face(const struct job *job, const struct part *part, int d, enum side side)
{
    const struct face *face = &part->face[d][side];

    check_hoccl(
        HOCCL_Recv((void *)face->in, face->count, HOCCL_FP64, part->neighbour[d][side], job->comm, part->stream),
        "HOCCL_Recv");
}

/* Where both neighbours are one rank (or this one), messages match in posting order: what leaves at the low side first
 * arrives at the high side first. */
static void exchange_start(const struct job *job, struct part *part, const struct field *f)
{
    for (int d = 0; d < 3; d++)
        for (int side = LOW; side <= HIGH; side++) {
            struct face *face = &part->face[d][side];
            copy_layer(f, d, side == LOW ? 1 : f->n[d], face->out_host, true);
            check_cuda(cuMemcpyHtoDAsync(face->out, face->out_host, face->count * sizeof(double), part->stream),
                       "cuMemcpyHtoDAsync");
        }
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    for (int d = 0; d < 3; d++) {
        send_face(job, part, d, LOW);
        send_face(job, part, d, HIGH);
        receive_face(job, part, d, HIGH);
        receive_face(job, part, d, LOW);
    }
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    for (int d = 0; d < 3; d++)
        for (int side = LOW; side <= HIGH; side++) {
            struct face *face = &part->face[d][side];
            check_cuda(cuMemcpyDtoHAsync(face->in_host, face->in, face->count * sizeof(double), part->stream),
                       "cuMemcpyDtoHAsync");
        }
}

static void stream_wait(const struct job *job, CUstream stream)
{
    HOCCL_Result error;

    check_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(job->comm, &error), "HOCCL_CommGetAsyncError");
    check_hoccl(error, "exchange");
}

static void exchange_finish(const struct job *job, struct part *part, const struct field *f)
{
    stream_wait(job, part->stream);
    for (int d = 0; d < 3; d++)
        for (int side = LOW; side <= HIGH; side++)
            copy_layer(f, d, side == LOW ? 0 : f->n[d] + 1, part->face[d][side].in_host, false);
}

/* ---- The check ---- */

/* The whole grid by one rank: its own neighbour in every direction. */
static struct field run_alone(size_t global, int steps)
{
    const size_t n[3] = {global, global, global}, none[3] = {0}, low[3] = {1, 1, 1};
    struct field from = field_new(n), to = field_new(n);
    double *face = malloc(global * global * sizeof *face);

    if (!face)
        fail("no memory for a face of %zu x %zu cells", global, global);
    field_start(&from, none, global);
    for (int step = 0; step < steps; step++) {
        for (int d = 0; d < 3; d++)
            for (int side = LOW; side <= HIGH; side++) {
                copy_layer(&from, d, side == LOW ? global : 1, face, true);
                copy_layer(&from, d, side == LOW ? 0 : global + 1, face, false);
            }
        update(&from, &to, low, n);
        struct field swap = from;
        from = to;
        to = swap;
    }
    free(to.cells);
    free(face);
    return from;
}

/* Cells of the gathered blocks, rank after rank, that differ from the serial run in any bit. */
static size_t compare(const struct job *job, const double *blocks, const struct field *whole)
{
    size_t wrong = 0;

    for (int rank = 0; rank < job->size; rank++) {
        struct part part;
        part_place(&part, rank, job->size, whole->n[0]);
        for (size_t z = 1; z <= part.n[2]; z++)
            for (size_t y = 1; y <= part.n[1]; y++, blocks += part.n[0])
                for (size_t x = 0; x < part.n[0]; x++)
                    wrong +=
                        memcmp(&blocks[x], cell(whole, part.first[0] + x + 1, part.first[1] + y, part.first[2] + z),
                               sizeof *blocks) != 0;
    }
    return wrong;
}

/* Every block to rank 0, which compares; returns the number of wrong cells there, 0 elsewhere. */
static size_t check_result(const struct job *job, const struct part *part, const struct field *f, int steps)
{
    size_t own = part->n[0] * part->n[1] * part->n[2], all = part->global * part->global * part->global, at = 0;
    size_t *counts = calloc((size_t)job->size, sizeof *counts), *displs = calloc((size_t)job->size, sizeof *displs);
    double *host = malloc((job->rank ? own : all) * sizeof *host), *to = host;
    size_t wrong = 0;
    CUdeviceptr block, blocks = 0;

    if (!counts || !displs || !host)
        fail("no memory for the result");
    for (int rank = 0; rank < job->size; rank++) {
        struct part other;
        part_place(&other, rank, job->size, part->global);
        counts[rank] = other.n[0] * other.n[1] * other.n[2];
        displs[rank] = at;
        at += counts[rank];
    }
    for (size_t z = 1; z <= part->n[2]; z++)
        for (size_t y = 1; y <= part->n[1]; y++, to += part->n[0])
            memcpy(to, cell(f, 1, y, z), part->n[0] * sizeof *to);
    check_cuda(cuMemAlloc(&block, own * sizeof *host), "cuMemAlloc");
    if (job->rank == 0)
        check_cuda(cuMemAlloc(&blocks, all * sizeof *host), "cuMemAlloc");
    check_cuda(cuMemcpyHtoDAsync(block, host, own * sizeof *host, part->stream), "cuMemcpyHtoDAsync");
    check_hoccl(
        HOCCL_Gatherv((const void *)block, own, (void *)blocks, counts, displs, HOCCL_FP64, 0, job->comm, part->stream),
        "HOCCL_Gatherv");
    stream_wait(job, part->stream);
    if (job->rank == 0) {
        struct field whole = run_alone(part->global, steps);
        check_cuda(cuMemcpyDtoH(host, blocks, all * sizeof *host), "cuMemcpyDtoH");
        wrong = compare(job, host, &whole);
        free(whole.cells);
        check_cuda(cuMemFree(blocks), "cuMemFree");
    }
    check_cuda(cuMemFree(block), "cuMemFree");
    free(counts);
    free(displs);
    free(host);
    return wrong;
}

/* ---- */

static void options_parse(int argc, char **argv, size_t *size, int *steps, int *spoil)
{
    static const struct option names[] = {{"size", 1, NULL, 's'},
                                          {"steps", 1, NULL, 'n'},
                                          {"spoil", 1, NULL, 'x'},
                                          {"help", 0, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    int letter;

    while ((letter = getopt_long(argc, argv, "s:n:h", names, NULL)) != -1) {
        if (letter == 's')
            *size = size_parse(optarg);
        else if (letter == 'n')
            *steps = atoi(optarg);
        else if (letter == 'x')
            *spoil = atoi(optarg);
        else {
            fputs(usage, letter == 'h' ? stdout : stderr);
            exit(letter == 'h' ? 0 : 2);
        }
    }
}

int main(int argc, char **argv)
{
    size_t size = 96, wrong;
    int steps = 20, spoil = -1;
    double started, waited = 0, seconds;
    struct part part;
    struct job job;

    options_parse(argc, argv, &size, &steps, &spoil);
    job_open(&job);
    part_place(&part, job.rank, job.size, size);
    if (size < (size_t)part.dims[0])
        fail("%zu cells cannot be split over %d ranks: give a larger --size", size, part.dims[0]);
    part_open(&part);
    struct field from = field_new(part.n), to = field_new(part.n);
    field_start(&from, part.first, size);

    started = now();
    for (int step = 0; step < steps; step++) {
        exchange_start(&job, &part, &from);
        update_inside(&from, &to);
        double waiting = now();
        exchange_finish(&job, &part, &from);
        waited += now() - waiting;
        if (step == spoil && job.rank == 0)
            *cell(&from, 0, 1, 1) += 1;
        update_surface(&from, &to);
        struct field swap = from;
        from = to;
        to = swap;
    }
    seconds = now() - started;

    wrong = check_result(&job, &part, &from, steps);
    if (job.rank == 0) {
        size_t cells = 2 * (part.face[0][0].count + part.face[1][0].count + part.face[2][0].count);
        printf("%zu^3 cells on %d x %d x %d ranks on %s (%s), %d steps of %.3f ms, of which %.3f ms waiting for %zu "
               "bytes of faces\n",
               size, part.dims[0], part.dims[1], part.dims[2], job.gpu, job.driver, steps,
               steps ? 1e3 * seconds / steps : 0, steps ? 1e3 * waited / steps : 0, cells * sizeof(double));
        if (wrong)
            fail("FAILED: %zu cells are wrong", wrong);
        printf("equal to a serial run in every bit\n");
    }
    free(from.cells);
    free(to.cells);
    part_close(&part);
    job_close();
    return 0;
}
