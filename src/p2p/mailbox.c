/* SPDX-License-Identifier: Apache-2.0 */
/* Making and mapping boards. The words' protocol is in mailbox.h, its users in flow.c.
 *
 * The boards that were made in this process stand in a table with the number of their users: a rank in another thread
 * asks for its peer's board by number, never by address, so it does not matter which of the two gives up first. */
#define _GNU_SOURCE
#include "p2p/mailbox.h"

#include "base/error.h"
#include "base/list.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x48434f42u /* "BOCH" */
#define VERSION 6u

struct home {
    struct hoccl_list link;
    uint64_t number;
    struct hoccl_board *board;
    size_t bytes;
    int users;
    bool registered; /* one of them has registered the staging area */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hoccl_list homes = {&homes, &homes}; /* under lock */
static uint64_t numbers;                           /* under lock: given out so far */

static uint64_t enter_home(struct home *h)
{
    pthread_mutex_lock(&lock);
    h->number = ++numbers;
    h->users = 1;
    hoccl_list_append(&homes, &h->link);
    pthread_mutex_unlock(&lock);
    return h->number;
}

/* Under lock: by number, or, with number 0, by address. */
static struct home *find_home(uint64_t number, const struct hoccl_board *board)
{
    for (struct hoccl_list *l = homes.next; l != &homes; l = l->next) {
        struct home *h = hoccl_entry(l, struct home, link);
        if (number ? h->number == number : h->board == board)
            return h;
    }
    return NULL;
}

#define PAGE ((size_t)4096)

/* The mailboxes, to a whole page; behind them the staging area. */
static size_t mail_bytes(int size)
{
    size_t n = sizeof(struct hoccl_board) + (size_t)size * sizeof(struct hoccl_ring);
    return (n + PAGE - 1) / PAGE * PAGE;
}

static size_t board_bytes(int size)
{
    return mail_bytes(size) + HOCCL_STAGE_AREA;
}

char *hoccl_board_stage(struct hoccl_board *board, size_t bytes)
{
    return (char *)board + bytes - HOCCL_STAGE_AREA;
}

/* The tag that each slot would carry from the round before the first. */
static void set_tags(struct hoccl_board *board, int size, uint32_t first)
{
    for (int p = 0; p < size; p++)
        for (uint32_t n = first; n != first + HOCCL_SLOTS; n++) {
            struct hoccl_slot *s = &board->ring[p].slot[n % HOCCL_SLOTS];
            s->grant.tag = s->offer.tag = s->receipt.tag = s->receipt.staged = s->answer.tag = n - HOCCL_SLOTS;
        }
}

/* A signal would end the call, and undo what it has done so far: with a timer that is shorter it would never come to its end. */
static int reserve(int fd, size_t bytes)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = posix_fallocate(fd, 0, (off_t)bytes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

static HOCCL_Result make_memory(size_t n, int size, struct hoccl_board **board, int *fd)
{
    int f = memfd_create("hoccl-board", MFD_CLOEXEC);
    if (f < 0)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "a descriptor for shared memory: %m (see ulimit -n)");
    int e = ftruncate(f, (off_t)n) ? errno : reserve(f, mail_bytes(size));
    if (e) {
        close(f);
        return hoccl_fail(HOCCL_ERR_MEMORY, "%zu bytes of shared memory for the mailboxes of %d ranks: %s", mail_bytes(size),
                          size, strerror(e));
    }
    struct hoccl_board *b = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    if (b == MAP_FAILED) {
        hoccl_fail(HOCCL_ERR_MEMORY, "mapping %zu bytes of shared memory: %m", n);
        close(f);
        return HOCCL_ERR_MEMORY;
    }
    *board = b;
    *fd = f;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_board_create(int size, uint32_t first, struct hoccl_board **board, size_t *bytes, int *fd, uint64_t *number)
{
    struct home *h = hoccl_alloc(sizeof *h, "mailboxes");
    if (!h)
        return HOCCL_ERR_MEMORY;
    h->bytes = board_bytes(size);
    HOCCL_Result r = make_memory(h->bytes, size, &h->board, fd);
    if (r) {
        free(h);
        return r;
    }
    h->board->status.magic = MAGIC;
    h->board->status.version = VERSION;
    set_tags(h->board, size, first);
    hoccl_publish(&h->board->status.state, HOCCL_BOARD_OPEN);
    *board = h->board;
    *bytes = h->bytes;
    *number = enter_home(h);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_board_map(int fd, size_t bytes, int size, struct hoccl_board **board)
{
    struct stat st;
    if (bytes != board_bytes(size) || fstat(fd, &st) || (size_t)st.st_size < bytes)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "a peer's mailboxes have another size: all ranks must run the same HOCCL");
    struct hoccl_board *b = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (b == MAP_FAILED)
        return hoccl_fail(HOCCL_ERR_MEMORY, "mapping a peer's mailboxes (%zu bytes): %m", bytes);
    if (b->status.magic != MAGIC || b->status.version != VERSION) {
        munmap(b, bytes);
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "a peer's mailboxes have another layout: all ranks must run the same HOCCL");
    }
    *board = b;
    return HOCCL_SUCCESS;
}

void hoccl_board_unmap(struct hoccl_board *board, size_t bytes)
{
    munmap(board, bytes);
}

HOCCL_Result hoccl_board_join(uint64_t number, struct hoccl_board **board)
{
    pthread_mutex_lock(&lock);
    struct home *h = find_home(number, NULL);
    if (h) {
        h->users++;
        *board = h->board;
    }
    pthread_mutex_unlock(&lock);
    return h ? HOCCL_SUCCESS : hoccl_fail(HOCCL_ERR_BOOTSTRAP, "a rank of this process has given up during start-up");
}

bool hoccl_board_leave(struct hoccl_board *board, bool ready, bool *registered)
{
    pthread_mutex_lock(&lock);
    struct home *h = find_home(0, board);
    bool last = h && --h->users == 0;
    if (h)
        *registered = h->registered |= ready;
    if (last)
        hoccl_list_remove(&h->link);
    pthread_mutex_unlock(&lock);
    if (last)
        free(h);
    return last;
}

void hoccl_board_say(struct hoccl_board *board, enum hoccl_board_state state, const char *text)
{
    if (text && hoccl_peek(&board->status.state) == HOCCL_BOARD_OPEN) {
        size_t n = strnlen(text, HOCCL_STATUS_TEXT - 1);
        memcpy(board->status.text, text, n);
        board->status.text[n] = 0;
    }
    hoccl_publish(&board->status.state, state);
}

enum hoccl_board_state hoccl_board_state(const struct hoccl_board *board)
{
    return hoccl_observe(&board->status.state);
}

void hoccl_board_say_quiet(struct hoccl_board *board)
{
    hoccl_publish(&board->status.quiet, 1);
}

bool hoccl_board_quiet(const struct hoccl_board *board)
{
    return hoccl_observe(&board->status.quiet) || hoccl_board_state(board) == HOCCL_BOARD_CLOSED;
}
