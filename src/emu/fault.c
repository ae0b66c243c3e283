/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on demand: HOCCL_EMU_FAULT is a list, separated by commas, of TARGET[@GPU]#N[+]=ACTION.
 *
 *     cuMemAlloc#3=CUDA_ERROR_OUT_OF_MEMORY   the third call of the function in this process returns the error
 *     cuEventCreate#1=late:5000               the call takes 5,000 us longer
 *     push#5=late:200000                      the fifth push that an engine takes ends 200,000 us later
 *     pull@1#2+=void                          from the second pull of GPU 1 on, copies report success, move nothing
 *     d2h#1=stuck                             the first D2H copy never ends
 *
 * N counts from 1 for each GPU and engine, or each function; with + it and all later ones. GPU is the machine's number.
 * What happens depends on nothing else, so a run can be had again.
 */
#include "emu.h"

#include "entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX 32

struct fault {
    char target[64];
    int gpu; /* -1: any */
    uint64_t n, seen;
    bool later;
    enum emu_fault_action action;
    CUresult error;
    uint64_t us;
};

static struct fault faults[MAX];
static unsigned count; /* set once, before cuInit has returned; atomic */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *const engine_name[EMU_CLASSES] = {"sm", "push", "pull", "d2h", "h2d"};

static bool read_error(const char *text, CUresult *error)
{
    for (int code = 1; code < 1000; code++) {
        const char *name;
        if (cuGetErrorName((CUresult)code, &name) == CUDA_SUCCESS && !strcmp(name, text)) {
            *error = (CUresult)code;
            return true;
        }
    }
    return false;
}

static bool read_action(struct fault *f, const char *text)
{
    if (sscanf(text, "late:%lu", &f->us) == 1) {
        f->action = EMU_LATE;
        return true;
    }
    if (!strncmp(f->target, "cu", 2))
        return read_error(text, &f->error);
    if (!strcmp(text, "void"))
        f->action = EMU_VOID;
    else if (!strcmp(text, "stuck"))
        f->action = EMU_STUCK;
    return f->action != EMU_NO_FAULT;
}

static bool known_target(const struct fault *f)
{
    for (int c = EMU_PUSH; c < EMU_CLASSES; c++)
        if (!strcmp(f->target, engine_name[c]))
            return true;
    void *function;
    return cuGetProcAddress(f->target, &function, CUDA_VERSION, 0, NULL) == CUDA_SUCCESS;
}

/* One entry of the list, which this cuts up. */
static bool read_fault(char *text, struct fault *f)
{
    char *action = strchr(text, '='), *number = strchr(text, '#'), *gpu = strchr(text, '@');
    *f = (struct fault){.gpu = -1};
    if (!action || !number || number > action || (gpu && gpu > number))
        return false;
    *action++ = *number++ = '\0';
    if (gpu) {
        *gpu++ = '\0';
        f->gpu = atoi(gpu);
    }
    char *end;
    f->n = strtoull(number, &end, 10);
    f->later = *end == '+';
    snprintf(f->target, sizeof f->target, "%s", text);
    return f->n && end != number && !end[f->later] && known_target(f) && read_action(f, action);
}

CUresult emu_faults_read(void)
{
    const char *text = getenv("HOCCL_EMU_FAULT");
    unsigned n = 0;
    char *copy = text ? strdup(text) : NULL, *rest = copy;
    for (char *entry; rest && (entry = strsep(&rest, ",")) != NULL;) {
        if (n == MAX || !read_fault(entry, &faults[n])) {
            fprintf(stderr, "HOCCL: HOCCL_EMU_FAULT=\"%s\": entry %u is not TARGET[@GPU]#N[+]=ACTION, or names no engine, function, error or action\n", text, n + 1);
            free(copy);
            return CUDA_ERROR_INVALID_VALUE;
        }
        n++;
    }
    free(copy);
    __atomic_store_n(&count, n, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static bool hits(const struct fault *f, uint64_t n)
{
    return f->later ? n >= f->n : n == f->n;
}

CUresult emu_fault_call(const char *name)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t us = 0;
    unsigned n = __atomic_load_n(&count, __ATOMIC_ACQUIRE);
    if (!n)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(faults[i].target, name) && hits(&faults[i], ++faults[i].seen)) {
            result = faults[i].error;
            us = faults[i].us;
        }
    pthread_mutex_unlock(&lock);
    if (us)
        usleep((useconds_t)us);
    return result;
}

enum emu_fault_action emu_fault_copy(enum emu_class engine, int gpu, uint64_t n, uint64_t *us)
{
    unsigned all = __atomic_load_n(&count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < all; i++) {
        const struct fault *f = &faults[i];
        if (!strcmp(f->target, engine_name[engine]) && (f->gpu < 0 || f->gpu == gpu) && hits(f, n)) {
            *us = f->us;
            return f->action;
        }
    }
    return EMU_NO_FAULT;
}
