/* SPDX-License-Identifier: Apache-2.0 */
/* Framing. Headers and bytes of up to BATCH things given go out with one sendmsg, straight from the regions; the bytes of
 * a write come in with one recvmsg straight into its region, together with the header behind it:
 *
 *   stream   ┌header┬──── bytes ────┬header┬─ …
 *   recvmsg         └─▶ the region ─┴─▶ head
 *
 * Each call moves at most PIECE bytes, so that lanes of a thread take turns and who wants the lane's lock waits for an
 * instant only. A region is entered for the call and left after it: one that is removed in the middle of a write breaks
 * the connection at the next call. */
#include "transport/tcp_lane.h"

#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define BATCH 8
#define READS 4                  /* calls of recvmsg in a step */
#define PIECE ((uint64_t)1 << 20)
#define SILENT 5                 /* looks, of which there are TCP_LOOKS in the life of a peer */
#define HEAD sizeof(struct tcp_frame)

_Static_assert(SILENT + 3 <= TCP_LOOKS, "one to say something, one for what happens just after a look, one to spare");
_Static_assert(BATCH + READS + 1 <= TCP_NEWS_STEP, "news of a step");

/* ---- telling ----------------------------------------------------------------------------------------------------- */

static struct tcp_news *news(struct tcp_lane *lane, enum tcp_news_kind kind)
{
    struct tcp_news *n = tcp_news_next(lane->loop->news);
    n->kind = kind;
    n->serial = lane->serial;
    n->socket = lane->socket;
    return n;
}

static void tell(struct tcp_lane *lane)
{
    tcp_news_tell(lane->loop->news);
}

static void close_socket(struct tcp_lane *lane)
{
    if (lane->fd >= 0)
        close(lane->fd);
    lane->fd = -1;
    lane->can_read = lane->can_write = false;
}

static void fault(struct tcp_lane *lane, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The end of an ACTIVE lane, with the reason. */
static void fault(struct tcp_lane *lane, const char *format, ...)
{
    if (lane->state != TCP_ACTIVE)
        return;
    lane->state = TCP_FAULTY;
    close_socket(lane);
    struct tcp_news *n = news(lane, TCP_NEWS_BROKEN);
    int at = snprintf(n->data, sizeof n->data, "%s: ", lane->name);
    va_list args;
    va_start(args, format);
    vsnprintf(n->data + at, sizeof n->data - (size_t)at, format, args);
    va_end(args);
    tell(lane);
}

static void fault_errno(struct tcp_lane *lane, int e)
{
    if (e == ETIMEDOUT || e == EHOSTUNREACH || e == ENETUNREACH || e == ENETDOWN)
        fault(lane, "no answer any more (%s): its node is down or the network in between is cut (HOCCL_TIMEOUT decides when)",
              strerror(e));
    else if (e == ECONNRESET || e == EPIPE)
        fault(lane, "the peer's end has closed without a goodbye (%s): its process has ended or failed; look for its "
              "own message", strerror(e));
    else if (e == EFAULT)
        fault(lane, "the memory of a region cannot be read or written here (%s): it was freed before its region was removed, "
              "or is memory of a GPU, which TCP does not reach", strerror(e));
    else
        fault(lane, "the socket failed: %s", strerror(e));
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

struct batch {
    struct iovec part[2 * BATCH + 1];
    int parts;
    struct tcp_region *region[BATCH];
    int regions;
    uint64_t bytes;
};

static void add_part(struct batch *b, const void *from, uint64_t bytes)
{
    if (!bytes)
        return;
    b->part[b->parts++] = (struct iovec){.iov_base = (void *)(uintptr_t)from, .iov_len = bytes};
    b->bytes += bytes;
}

/* Header and bytes of a slot from `at` on, at most what is left of PIECE. false: its region is not there. */
static bool add_slot(struct tcp_lane *lane, struct batch *b, const struct tcp_slot *s, uint64_t at, const char **why)
{
    uint64_t done = at < HEAD ? 0 : at - HEAD, rest = s->frame.bytes - done;
    if (s->key) {
        struct tcp_region *r = hoccl_tcp_region_enter(&lane->loop->shared->regions, s->key, (uintptr_t)s->bytes + done, rest, why);
        if (!r)
            return false;
        b->region[b->regions++] = r;
    }
    if (at < HEAD)
        add_part(b, (const char *)&s->frame + at, HEAD - at);
    if (b->bytes < PIECE)
        add_part(b, s->bytes + done, rest < PIECE - b->bytes ? rest : PIECE - b->bytes);
    return true;
}

static void gather(struct tcp_lane *lane, struct batch *b)
{
    uint32_t given = hoccl_observe(&lane->given);
    uint64_t at = lane->sent_at;
    const char *why = NULL;
    b->parts = b->regions = 0;
    b->bytes = 0;
    if (!at && lane->note_left)
        add_part(b, (const char *)&lane->note + (HEAD - lane->note_left), lane->note_left);
    for (uint32_t i = lane->sent; i != given && i - lane->sent < BATCH && b->bytes < PIECE; i++, at = 0) {
        if (add_slot(lane, b, &lane->slot[i % TCP_SLOTS], at, &why))
            continue;
        if (!b->parts)
            fault(lane, "a write cannot go on, %s (HOCCL's own error)", why);
        return;
    }
}

/* The kernel has `n` bytes more. */
static void advance(struct tcp_lane *lane, uint64_t n)
{
    if (!lane->sent_at && lane->note_left) {
        uint64_t k = n < lane->note_left ? n : lane->note_left;
        lane->note_left -= (uint32_t)k;
        n -= k;
    }
    while (n) {
        const struct tcp_slot *s = &lane->slot[lane->sent % TCP_SLOTS];
        uint64_t rest = HEAD + s->frame.bytes - lane->sent_at;
        if (n < rest) {
            lane->sent_at += n;
            return;
        }
        n -= rest;
        lane->sent_at = 0;
        if (s->frame.kind == TCP_WRITE) {
            struct tcp_news *w = news(lane, TCP_NEWS_WRITTEN);
            w->tag = s->tag;
            w->bytes = s->frame.bytes;
            tell(lane);
        }
        hoccl_poke(&lane->sent_bytes, lane->sent_bytes + s->frame.bytes);
        hoccl_publish(&lane->sent, lane->sent + 1);
    }
}

static bool has_output(const struct tcp_lane *lane)
{
    return lane->note_left || hoccl_observe(&lane->given) != lane->sent;
}

/* One sendmsg. An error is kept: what the peer has sent before may still say that all is well. */
static void send_some(struct tcp_lane *lane)
{
    struct batch b;
    if (!lane->can_write || lane->send_error || !has_output(lane))
        return;
    gather(lane, &b);
    if (!b.parts)
        return;
    struct msghdr m = {.msg_iov = b.part, .msg_iovlen = (size_t)b.parts};
    ssize_t n = sendmsg(lane->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    int e = errno;
    for (int i = 0; i < b.regions; i++)
        hoccl_tcp_region_leave(b.region[i]);
    if (n >= 0) {
        lane->spoke = true;
        lane->taken += (uint64_t)n;
        advance(lane, (uint64_t)n);
    } else if (e == EAGAIN) {
        lane->can_write = false;
    } else if (e == EFAULT) {
        fault_errno(lane, e);
    } else if (e != EINTR) {
        lane->send_error = e;
        lane->can_read = true;
    }
}

static void set_note(struct tcp_lane *lane, enum tcp_frame_kind kind)
{
    lane->note = (struct tcp_frame){.magic = TCP_FRAME_MAGIC, .kind = kind};
    lane->note_left = HEAD;
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

/* The frame in `head` and its body are complete. */
static void end_frame(struct tcp_lane *lane)
{
    const struct tcp_frame *f = &lane->head;
    struct tcp_news *n;
    switch ((enum tcp_frame_kind)f->kind) {
    case TCP_MESSAGE:
        n = news(lane, TCP_NEWS_MESSAGE);
        n->bytes = f->bytes;
        memcpy(n->data, lane->message, f->bytes);
        tell(lane);
        break;
    case TCP_WRITE:
        n = news(lane, TCP_NEWS_ARRIVED);
        n->bytes = f->bytes;
        n->word = f->word;
        tell(lane);
        break;
    case TCP_GOODBYE:
        lane->state = TCP_QUIET;
        close_socket(lane);
        news(lane, TCP_NEWS_GOODBYE);
        tell(lane);
        break;
    case TCP_WELCOME: /* these are read where the connection is made */
    case TCP_DECLINED:
    case TCP_BEAT:
        break;
    }
}

static bool frame_is_sound(const struct tcp_lane *lane)
{
    const struct tcp_frame *f = &lane->head;
    if (f->magic != TCP_FRAME_MAGIC)
        return false;
    switch (f->kind) {
    case TCP_MESSAGE:
        return !lane->socket && f->bytes <= HOCCL_MESSAGE_BYTES;
    case TCP_WRITE:
        return lane->socket && f->bytes;
    case TCP_BEAT:
    case TCP_GOODBYE:
        return !f->bytes;
    default:
        return false;
    }
}

static void begin_frame(struct tcp_lane *lane)
{
    lane->head_at = 0;
    if (!frame_is_sound(lane)) {
        fault(lane, "what came is no frame of this protocol (magic %08x, kind %u, %llu bytes): something in between changes "
              "the stream, or HOCCL's own error", lane->head.magic, lane->head.kind, (unsigned long long)lane->head.bytes);
        return;
    }
    lane->left = lane->head.bytes;
    if (!lane->left)
        end_frame(lane);
}

static void receive_failed(struct tcp_lane *lane, int e)
{
    if (e == EAGAIN && !lane->send_error)
        lane->can_read = false;
    else if (lane->send_error && (e == EAGAIN || e == EPIPE))
        fault_errno(lane, lane->send_error);
    else if (e != EINTR)
        fault_errno(lane, e);
}

/* `n` bytes more have come. */
static void take_in(struct tcp_lane *lane, uint64_t n)
{
    if (lane->left) {
        uint64_t k = n < lane->left ? n : lane->left;
        lane->left -= k;
        n -= k;
        if (!lane->left)
            end_frame(lane);
    }
    lane->head_at += (uint32_t)n;
    if (lane->head_at == HEAD)
        begin_frame(lane);
}

/* One recvmsg; the bytes that came. */
static uint64_t receive_some(struct tcp_lane *lane)
{
    struct tcp_frame next;
    struct iovec part[2];
    struct tcp_region *region = NULL;
    const char *why = NULL;
    int parts = 0;
    const struct tcp_frame *f = &lane->head;
    uint64_t body = lane->left < PIECE ? lane->left : PIECE;
    if (body) {
        char *to = lane->message + (f->bytes - lane->left);
        if (f->kind == TCP_WRITE) {
            uint64_t at = f->address + (f->bytes - lane->left);
            region = hoccl_tcp_region_enter(&lane->loop->shared->regions, f->key, at, lane->left, &why);
            if (!region) {
                fault(lane, "a write of %llu bytes was refused, %s", (unsigned long long)f->bytes, why);
                return 0;
            }
            to = (char *)(uintptr_t)at;
        }
        part[parts++] = (struct iovec){.iov_base = to, .iov_len = body};
    }
    if (body == lane->left) /* nothing of the next header is there yet if a body is being read */
        part[parts++] = (struct iovec){.iov_base = (char *)(body ? &next : &lane->head) + lane->head_at * !body,
                                       .iov_len = body ? HEAD : HEAD - lane->head_at};
    struct msghdr m = {.msg_iov = part, .msg_iovlen = (size_t)parts};
    ssize_t n = recvmsg(lane->fd, &m, MSG_DONTWAIT);
    int e = errno;
    if (region)
        hoccl_tcp_region_leave(region);
    if (n <= 0) {
        receive_failed(lane, n ? e : EPIPE);
        return 0;
    }
    uint64_t rest = (uint64_t)n;
    if (body && rest >= lane->left) {
        take_in(lane, body);
        rest -= body;
        if (lane->state == TCP_ACTIVE)
            lane->head = next;
    }
    if (rest && lane->state == TCP_ACTIVE)
        take_in(lane, rest);
    return (uint64_t)n;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool step_active(struct tcp_lane *lane)
{
    if (!tcp_news_room(lane->loop->news, TCP_NEWS_STEP))
        return true;
    uint64_t bytes = 0;
    for (int i = 0; i < READS && bytes < PIECE / 2 && lane->can_read && lane->state == TCP_ACTIVE; i++)
        bytes += receive_some(lane);
    if (lane->state == TCP_ACTIVE)
        send_some(lane);
    return lane->can_read || (lane->can_write && !lane->send_error && has_output(lane));
}

/* The stream of the peer is read and thrown away: closing a socket with bytes unread would take back what was sent. */
static bool drained(struct tcp_lane *lane)
{
    char scrap[16384];
    ssize_t n = 1;
    for (int i = 0; i < 64 && n > 0; i++)
        n = recv(lane->fd, scrap, sizeof scrap, MSG_DONTWAIT);
    return !n || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* Is it over? */
static bool step_departing(struct tcp_lane *lane)
{
    if (!lane->depart_until) {
        lane->depart_until = hoccl_now() + lane->loop->shared->life;
        lane->loop->departing++;
    }
    if (!lane->goodbye && !has_output(lane)) {
        set_note(lane, TCP_GOODBYE);
        lane->goodbye = true;
    }
    send_some(lane);
    if (lane->goodbye && !lane->note_left && !lane->finished) {
        shutdown(lane->fd, SHUT_WR);
        lane->finished = true;
    }
    return lane->send_error || drained(lane) || hoccl_now() > lane->depart_until;
}

/* The caller has let go of it. */
static void retire(struct tcp_lane *lane)
{
    if (lane->depart_until)
        lane->loop->departing--;
    lane->depart_until = 0;
    close_socket(lane);
    hoccl_list_remove(&lane->of_run);
    hoccl_list_remove(&lane->of_loop);
    hoccl_list_append(&lane->loop->over, &lane->of_loop);
}

bool hoccl_tcp_lane_step(struct tcp_lane *lane)
{
    bool more = false, over = false;
    pthread_mutex_lock(&lane->lock);
    switch (lane->state) {
    case TCP_ACTIVE:
        more = step_active(lane);
        break;
    case TCP_DEPARTING:
        over = step_departing(lane);
        more = !over && lane->can_write && has_output(lane);
        break;
    case TCP_CUT:
        over = true;
        break;
    case TCP_QUIET:
    case TCP_FAULTY:
        break;
    }
    pthread_mutex_unlock(&lane->lock);
    if (over)
        retire(lane);
    return more;
}

/* Is something on its way of which the peer's kernel has acknowledged nothing for SILENT looks? Looks are counted, not time:
 * this process may have been stopped. The kernel's own timer (TCP_USER_TIMEOUT) would begin with the first retransmission,
 * which is seconds late if the first round trip was slow. */
static bool vanished(struct tcp_lane *lane)
{
    int queued;
    if (ioctl(lane->fd, SIOCOUTQ, &queued))
        return false;
    uint64_t acknowledged = lane->taken - (uint64_t)queued;
    lane->silent = queued && acknowledged == lane->acknowledged ? lane->silent + 1 : 0;
    lane->acknowledged = acknowledged;
    return lane->silent >= SILENT;
}

void hoccl_tcp_lane_look(struct tcp_lane *lane, uint64_t now)
{
    bool over = false;
    pthread_mutex_lock(&lane->lock);
    if (lane->state == TCP_ACTIVE && !lane->socket && !tcp_news_room(lane->loop->news, TCP_NEWS_STEP)) {
        lane->spoke = false;
    } else if (lane->state == TCP_ACTIVE && !lane->socket && vanished(lane)) {
        fault_errno(lane, ETIMEDOUT);
    } else if (lane->state == TCP_ACTIVE && !lane->socket) {
        if (!lane->spoke && !has_output(lane)) {
            set_note(lane, TCP_BEAT);
            send_some(lane);
        }
        lane->spoke = false;
    } else if (lane->state == TCP_DEPARTING) {
        over = step_departing(lane) || now > lane->depart_until;
    }
    pthread_mutex_unlock(&lane->lock);
    if (over)
        retire(lane);
}

/* ---- the caller's side ------------------------------------------------------------------------------------------- */

struct tcp_lane *hoccl_tcp_lane_open(struct tcp_loop *loop, int fd, uint64_t serial, uint32_t socket, const char *name,
                                     bool welcome)
{
    struct tcp_lane *lane = hoccl_alloc_lines(sizeof *lane, "a lane");
    if (!lane)
        return NULL;
    lane->fd = -1;
    if (!socket && !(lane->text = hoccl_alloc((size_t)TCP_SLOTS * HOCCL_MESSAGE_BYTES, "a lane's messages"))) {
        free(lane);
        return NULL;
    }
    lane->loop = loop;
    lane->fd = fd;
    lane->serial = serial;
    lane->socket = socket;
    lane->can_read = lane->can_write = true;
    snprintf(lane->name, sizeof lane->name, "%s", name);
    pthread_mutex_init(&lane->lock, NULL);
    hoccl_list_init(&lane->of_kicked);
    hoccl_list_init(&lane->of_loop);
    hoccl_list_init(&lane->of_run);
    if (welcome)
        set_note(lane, TCP_WELCOME);
    hoccl_tcp_loop_kick(loop, lane);
    return lane;
}

void hoccl_tcp_lane_free(struct tcp_lane *lane)
{
    pthread_mutex_lock(&lane->loop->lock);
    hoccl_list_remove(&lane->of_kicked);
    pthread_mutex_unlock(&lane->loop->lock);
    close_socket(lane);
    pthread_mutex_destroy(&lane->lock);
    free(lane->text);
    free(lane);
}

bool hoccl_tcp_lane_room(const struct tcp_lane *lane)
{
    return lane->given - hoccl_observe(&lane->sent) < TCP_SLOTS;
}

static struct tcp_slot *free_slot(struct tcp_lane *lane)
{
    return hoccl_tcp_lane_room(lane) ? &lane->slot[lane->given % TCP_SLOTS] : NULL;
}

bool hoccl_tcp_lane_give_write(struct tcp_lane *lane, const struct hoccl_write *w)
{
    struct tcp_slot *s = free_slot(lane);
    if (!s)
        return false;
    s->frame = (struct tcp_frame){.magic = TCP_FRAME_MAGIC, .kind = TCP_WRITE, .bytes = w->bytes, .key = w->to.key,
                                  .address = w->to.address + w->to_offset, .word = w->word};
    s->tag = w->tag;
    s->key = w->from->key.key;
    s->bytes = (const char *)(uintptr_t)(w->from->key.address + w->offset);
    hoccl_publish(&lane->given, lane->given + 1);
    hoccl_tcp_loop_kick(lane->loop, lane);
    return true;
}

/* A message saves the way through the I/O thread if the lane is free and the socket has room. */
bool hoccl_tcp_lane_give_message(struct tcp_lane *lane, const void *bytes, size_t count)
{
    struct tcp_slot *s = free_slot(lane);
    if (!s)
        return false;
    s->bytes = lane->text[lane->given % TCP_SLOTS];
    memcpy(lane->text[lane->given % TCP_SLOTS], bytes, count);
    s->frame = (struct tcp_frame){.magic = TCP_FRAME_MAGIC, .kind = TCP_MESSAGE, .bytes = count};
    s->key = 0;
    hoccl_publish(&lane->given, lane->given + 1);
    if (!pthread_mutex_trylock(&lane->lock)) {
        if (lane->state == TCP_ACTIVE)
            send_some(lane);
        pthread_mutex_unlock(&lane->lock);
    }
    if (!hoccl_tcp_lane_idle(lane))
        hoccl_tcp_loop_kick(lane->loop, lane);
    return true;
}

bool hoccl_tcp_lane_idle(const struct tcp_lane *lane)
{
    return lane->given == hoccl_observe(&lane->sent);
}

/* The kick comes before the unlock: the I/O thread may free the lane as soon as it can see the state. The thread is woken also if it
 * waits for room for news with the lane in its list: to let go of a lane takes none. */
void hoccl_tcp_lane_end(struct tcp_lane *lane, bool depart)
{
    pthread_mutex_lock(&lane->lock);
    lane->state = depart && lane->state == TCP_ACTIVE ? TCP_DEPARTING : TCP_CUT;
    hoccl_tcp_loop_kick(lane->loop, lane);
    hoccl_tcp_loop_wake(lane->loop);
    pthread_mutex_unlock(&lane->lock);
}
