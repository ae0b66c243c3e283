/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores: where the bytes are. GPU memory is one memfd an allocation, so that it needs no name and goes with its last
 * process, sealed against shrinking, with a last page that says what it is. A process maps each at most once. New
 * memory holds a pattern: nothing may rely on zeros. A large store gets it in places only, so that it stays as
 * sparse as it is used.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u
#define TAIL_MAGIC 0x4c4343484d450001u
#define DENSE (4u << 20)

static struct emu_store *stores;

static size_t tail_at(size_t size)
{
    return (size + PAGE - 1) / PAGE * PAGE;
}

static struct emu_store *store_new(void)
{
    struct emu_store *store = calloc(1, sizeof *store);
    if (!store)
        return NULL;
    store->refs = 1;
    store->id = ++emu.ids;
    store->fd = -1;
    store->gpu = EMU_HOST;
    store->next = stores;
    stores = store;
    return store;
}

static void store_end(struct emu_store *store)
{
    struct emu_store **link = &stores;
    while (*link != store)
        link = &(*link)->next;
    *link = store->next;
    if (store->fd >= 0) {
        if (store->bytes)
            munmap(store->bytes, tail_at(store->size) + PAGE);
        close(store->fd);
    }
    free(store);
}

static bool store_map(struct emu_store *store)
{
    struct stat st;
    size_t whole = tail_at(store->size) + PAGE;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, store->fd, 0);
    if (p == MAP_FAILED || fstat(store->fd, &st))
        return false;
    store->bytes = p;
    store->tail = (struct emu_tail *)(store->bytes + tail_at(store->size));
    store->dev = st.st_dev;
    store->ino = st.st_ino;
    return true;
}

static void fill_pattern(unsigned char *bytes, size_t from, size_t to, uint64_t id)
{
    uint64_t word = emu_random(id, from, 0x6d656d) | 0x0101010101010101u;
    for (size_t at = from; at < to; at += sizeof word, word += 0x0123456789abcdefu)
        memcpy(bytes + at, &word, to - at < sizeof word ? to - at : sizeof word);
}

static void fill_new(struct emu_store *store)
{
    size_t size = store->size;
    if (size <= DENSE) {
        fill_pattern(store->bytes, 0, size, store->id);
        return;
    }
    for (size_t at = 0; at < size; at += 1u << 20)
        fill_pattern(store->bytes, at, at + PAGE < size ? at + PAGE : size, store->id);
    fill_pattern(store->bytes, (size - PAGE) / PAGE * PAGE, size, store->id);
}

struct emu_store *emu_store_create(int gpu, size_t size)
{
    struct emu_store *store = store_new();
    if (!store)
        return NULL;
    store->gpu = gpu;
    store->size = size;
    store->fd = memfd_create("hoccl-emu-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (store->fd < 0 || ftruncate(store->fd, (off_t)(tail_at(size) + PAGE)) || !store_map(store)) {
        store_end(store);
        return NULL;
    }
    fcntl(store->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    store->tail->magic = TAIL_MAGIC;
    store->tail->machine = emu.machine;
    store->tail->size = size;
    store->tail->gpu = gpu;
    fill_new(store);
    return store;
}

struct emu_store *emu_store_host(void *bytes, size_t size)
{
    struct emu_store *store = store_new();
    if (!store)
        return NULL;
    store->bytes = bytes;
    store->size = size;
    return store;
}

void emu_store_fill(struct emu_store *store)
{
    fill_new(store);
}

/* Reads the last page of somebody's memfd; 0 if it is none of ours. */
static size_t read_tail(int fd, struct emu_tail *tail)
{
    struct stat st;
    if (fstat(fd, &st) || st.st_size < 2 * (off_t)PAGE || st.st_size % PAGE)
        return 0;
    if (pread(fd, tail, sizeof *tail, st.st_size - PAGE) != sizeof *tail || tail->magic != TAIL_MAGIC ||
        tail->machine != emu.machine)
        return 0;
    return tail_at(tail->size) + PAGE == (size_t)st.st_size ? tail->size : 0;
}

static struct emu_store *store_known(int fd)
{
    struct stat st;
    if (fstat(fd, &st))
        return NULL;
    for (struct emu_store *s = stores; s; s = s->next)
        if (s->fd >= 0 && s->dev == st.st_dev && s->ino == st.st_ino)
            return s;
    return NULL;
}

struct emu_store *emu_store_import(int fd)
{
    struct emu_tail tail;
    struct emu_store *store = store_known(fd);
    if (store) {
        close(fd);
        store->refs++;
        return store;
    }
    size_t size = read_tail(fd, &tail);
    store = size ? store_new() : NULL;
    if (!store) {
        close(fd);
        return NULL;
    }
    store->fd = fd;
    store->size = size;
    store->gpu = tail.gpu;
    store->foreign = true;
    store->handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (store_map(store))
        return store;
    store_end(store);
    return NULL;
}

struct emu_store *emu_store_find(uint64_t id)
{
    struct emu_store *s = stores;
    while (s && s->id != id)
        s = s->next;
    return s;
}

void emu_store_get(struct emu_store *store)
{
    store->refs++;
}

void emu_store_put(struct emu_store *store)
{
    if (--store->refs == 0)
        store_end(store);
}

void emu_store_mark_freed(struct emu_store *store)
{
    if (store->tail && !store->foreign)
        __atomic_store_n(&store->tail->freed, 1, __ATOMIC_RELEASE);
}

bool emu_store_dead(const struct emu_store *store)
{
    return store->tail && __atomic_load_n(&store->tail->freed, __ATOMIC_ACQUIRE);
}
