/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page that processes share. Whoever comes first under a machine's name makes the memfd and listens on an
 * abstract socket; whoever comes later gets both from any process that is there, the memfd *and* the listening
 * socket, so the name lives exactly as long as somebody who can answer:
 *
 *     first:  memfd, listen "hoccl-emu-machine-UID-NAME"
 *     later:  connect  ->  memfd, listening socket; now it answers as well
 *
 * What a process held when it died is taken back by the next one that finds too little left: pids are looked at.
 */
#define _GNU_SOURCE
#include "shared.h"

#include "device.h"
#include "socket.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define USERS 128
#define ASKING_NS 2000000u /* who asks, asks again sooner than this */

struct user {
    int32_t pid; /* 0: free */
    uint64_t slots, memory;
};

struct engine {
    int32_t owner;    /* pid, 0: nobody; atomic */
    int32_t wanted;   /* pid of one who has asked in vain; atomic */
    uint64_t asked;   /* ns: when he did last; atomic */
    uint64_t next_ns; /* the owner's */
} __attribute__((aligned(64)));

struct gpu {
    pthread_mutex_t lock; /* robust; over user[] */
    struct user user[USERS];
    struct engine engine[EMU_CLASSES];
};

struct page {
    uint64_t ready; /* atomic: the first process has set up the locks */
    struct gpu gpu[EMU_MAX_DEVICES];
};

static struct page *page;
static bool alone = true;
static int page_fd = -1, listener = -1;

static void set_up(struct page *p)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (!alone) {
        pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    }
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        pthread_mutex_init(&p->gpu[i].lock, &attr);
    pthread_mutexattr_destroy(&attr);
    __atomic_store_n(&p->ready, 1, __ATOMIC_RELEASE);
}

static void *answer(void *arg)
{
    (void)arg;
    for (;;) {
        int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0 && errno != EINTR && errno != ECONNABORTED)
            usleep(10000);
        if (socket < 0)
            continue;
        if (emu_socket_same_user(socket))
            emu_socket_send(socket, (int[]){page_fd, listener}, 2);
        close(socket);
    }
    return NULL;
}

static bool map_page(void)
{
    void *p = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    if (p == MAP_FAILED)
        return false;
    page = p;
    return true;
}

/* Makes the page and takes the name; false: somebody has it. */
static bool found(const char *name)
{
    page_fd = memfd_create("hoccl-emu-machine", MFD_CLOEXEC);
    if (page_fd >= 0 && !ftruncate(page_fd, sizeof *page) && map_page()) {
        set_up(page);
        listener = emu_socket_listen(name);
        if (listener >= 0)
            return true;
        munmap(page, sizeof *page);
    }
    if (page_fd >= 0)
        close(page_fd);
    page_fd = -1;
    return false;
}

/* Gets both from somebody who is there; false: nobody, or he went meanwhile. */
static bool join(const char *name)
{
    int fds[2], socket = emu_socket_connect(name);
    bool good = socket >= 0 && emu_socket_readable(socket) && emu_socket_receive(socket, fds, 2) == 2;
    if (socket >= 0)
        close(socket);
    if (!good)
        return false;
    page_fd = fds[0];
    listener = fds[1];
    return map_page();
}

CUresult emu_shared_open(void)
{
    const char *machine = getenv("HOCCL_EMU_MACHINE");
    char name[100];
    if (page)
        return CUDA_SUCCESS;
    if (!machine || !*machine) {
        page = calloc(1, sizeof *page);
        if (page)
            set_up(page);
        return page ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    alone = false;
    snprintf(name, sizeof name, "hoccl-emu-machine-%u-%.60s", (unsigned)geteuid(), machine);
    for (int attempt = 0; attempt < 20; attempt++) {
        if (join(name) || found(name)) {
            emu_thread_start(answer, NULL, "emu-machine");
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_OPERATING_SYSTEM;
}

static bool dead(int32_t pid)
{
    return pid && kill(pid, 0) && errno == ESRCH;
}

static struct engine *engine_of(const struct emu_device *dev, enum emu_class class)
{
    return &page->gpu[dev->gpu].engine[class];
}

/* Whether somebody else asks for the engine and has not got it: who has just had it stands back for him. */
static bool another_asks(const struct engine *e)
{
    int32_t pid = __atomic_load_n(&e->wanted, __ATOMIC_ACQUIRE);
    return pid && pid != emu.pid && emu_now() - __atomic_load_n(&e->asked, __ATOMIC_ACQUIRE) < ASKING_NS;
}

/* Changes the owner from old to this process. */
static bool own(struct engine *e, int32_t old)
{
    return __atomic_compare_exchange_n(&e->owner, &old, emu.pid, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

bool emu_engine_take(const struct emu_device *dev, enum emu_class class)
{
    struct engine *e = engine_of(dev, class);
    int32_t owner = __atomic_load_n(&e->owner, __ATOMIC_ACQUIRE);
    if (alone || owner == emu.pid)
        return true;
    if (another_asks(e)) {
        emu.contended = true;
        return false;
    }
    if ((!owner || dead(owner)) && own(e, owner)) {
        __atomic_store_n(&e->wanted, 0, __ATOMIC_RELEASE);
        return true;
    }
    __atomic_store_n(&e->asked, emu_now(), __ATOMIC_RELEASE);
    __atomic_store_n(&e->wanted, emu.pid, __ATOMIC_RELEASE);
    emu.contended = true;
    return false;
}

void emu_engine_give(const struct emu_device *dev, enum emu_class class)
{
    int32_t me = emu.pid;
    if (!alone)
        __atomic_compare_exchange_n(&engine_of(dev, class)->owner, &me, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

uint64_t *emu_engine_next(const struct emu_device *dev, enum emu_class class)
{
    return &engine_of(dev, class)->next_ns;
}

static struct gpu *gpu_lock(const struct emu_device *dev)
{
    struct gpu *g = &page->gpu[dev->gpu];
    if (pthread_mutex_lock(&g->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&g->lock);
    return g;
}

/* This process's line; NULL: the table is full of the living. */
static struct user *my_line(struct gpu *g)
{
    struct user *empty = NULL;
    for (int i = 0; i < USERS; i++) {
        if (g->user[i].pid == emu.pid)
            return &g->user[i];
        if (!empty && (!g->user[i].pid || dead(g->user[i].pid)))
            empty = &g->user[i];
    }
    if (empty)
        *empty = (struct user){.pid = emu.pid};
    return empty;
}

static void bury(struct gpu *g)
{
    for (int i = 0; i < USERS; i++)
        if (dead(g->user[i].pid))
            g->user[i] = (struct user){0};
}

static struct user sum(const struct gpu *g)
{
    struct user all = {0};
    for (int i = 0; i < USERS; i++) {
        all.slots += g->user[i].slots;
        all.memory += g->user[i].memory;
    }
    return all;
}

uint64_t emu_slots_take(const struct emu_device *dev, uint64_t want, uint64_t least)
{
    struct gpu *g = gpu_lock(dev);
    uint64_t total = (uint64_t)emu.set.sms * 2048, free = total - sum(g).slots, given = 0;
    if (free < least && !alone) {
        bury(g);
        free = total - sum(g).slots;
        emu.contended = true; /* another process may give some back and not say so */
    }
    struct user *mine = my_line(g);
    if (mine && free >= least) {
        given = want < free ? want : free;
        mine->slots += given;
    }
    pthread_mutex_unlock(&g->lock);
    return given;
}

void emu_slots_give(const struct emu_device *dev, uint64_t slots)
{
    struct gpu *g = gpu_lock(dev);
    my_line(g)->slots -= slots;
    pthread_mutex_unlock(&g->lock);
}

bool emu_memory_take(const struct emu_device *dev, uint64_t bytes)
{
    struct gpu *g = gpu_lock(dev);
    if (!alone)
        bury(g);
    struct user *mine = my_line(g);
    bool good = mine && bytes <= emu.set.memory && sum(g).memory <= emu.set.memory - bytes;
    if (good)
        mine->memory += bytes;
    pthread_mutex_unlock(&g->lock);
    return good;
}

void emu_memory_give(const struct emu_device *dev, uint64_t bytes)
{
    struct gpu *g = gpu_lock(dev);
    my_line(g)->memory -= bytes;
    pthread_mutex_unlock(&g->lock);
}

uint64_t emu_memory_free(const struct emu_device *dev)
{
    struct gpu *g = gpu_lock(dev);
    if (!alone)
        bury(g);
    uint64_t used = sum(g).memory;
    pthread_mutex_unlock(&g->lock);
    return used < emu.set.memory ? emu.set.memory - used : 0;
}
