/* SPDX-License-Identifier: Apache-2.0 */
/* See tcp_pieces.h. Rows are looked for one after another: as many as chunks are on the way, a few dozen. */
#include "transport/tcp_pieces.h"

#include "base/error.h"
#include "transport/tcp_lane.h"

#include <stdlib.h>

#define UNIT ((size_t)4096) /* pieces begin at multiples of it, as the write does: copies of whole pages are the fastest */
#define FIRST_ROWS 32
/* Of writes that are not whole at the receiver: each has a piece in a slot or in a socket's buffers, which would have to hold 8 GiB. */
#define MOST_ROWS 65536u

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool open_rows(struct tcp_rows *rows, uint32_t room)
{
    rows->count = 0;
    rows->room = room;
    rows->row = hoccl_alloc(room * sizeof *rows->row, "the pieces of writes");
    return rows->row;
}

static struct tcp_row *find(const struct tcp_rows *rows, uint32_t number)
{
    for (uint32_t i = 0; i < rows->count; i++)
        if (rows->row[i].number == number)
            return &rows->row[i];
    return NULL;
}

/* NULL: there is no room. */
static struct tcp_row *add(struct tcp_rows *rows, uint32_t number)
{
    if (rows->count == rows->room)
        return NULL;
    struct tcp_row *r = &rows->row[rows->count++];
    *r = (struct tcp_row){.number = number};
    return r;
}

static bool make_room(struct tcp_rows *rows)
{
    if (rows->count < rows->room)
        return true;
    struct tcp_row *more = realloc(rows->row, 2 * rows->room * sizeof *more);
    if (!more)
        return false;
    rows->row = more;
    rows->room *= 2;
    return true;
}

/* `bytes` less are missing. Was it the last piece? The row is gone then. */
static bool take_off(struct tcp_rows *rows, struct tcp_row *r, uint64_t bytes)
{
    r->left -= bytes;
    if (r->left)
        return false;
    *r = rows->row[--rows->count];
    return true;
}

HOCCL_Result hoccl_tcp_pieces_open(struct tcp_pieces *pieces, struct tcp_lane *const *lane, int lanes)
{
    pieces->lane = lane;
    pieces->lanes = lanes;
    if (open_rows(&pieces->out, (uint32_t)lanes * TCP_SLOTS / 2) && open_rows(&pieces->in, FIRST_ROWS)) /* two pieces at least */
        return HOCCL_SUCCESS;
    hoccl_tcp_pieces_close(pieces);
    return HOCCL_ERR_MEMORY;
}

void hoccl_tcp_pieces_close(struct tcp_pieces *pieces)
{
    free(pieces->out.row);
    free(pieces->in.row);
    pieces->out = pieces->in = (struct tcp_rows){0};
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

struct load {
    int socket;
    uint64_t before; /* bytes that it has to send first */
};

/* The lanes with room and the fewest bytes before them, these first; at most `most`. Of equals they take turns. */
static int least_loaded(const struct tcp_pieces *p, int most, struct load *load)
{
    int n = 0;
    for (int k = 0; k < p->lanes; k++) {
        int socket = 1 + (p->turn + k) % p->lanes;
        const struct tcp_lane *lane = p->lane[socket];
        uint64_t before = p->given[socket] - hoccl_peek(&lane->sent_bytes);
        if (!hoccl_tcp_lane_room(lane) || (n == most && before >= load[n - 1].before))
            continue;
        int at = n < most ? n++ : n - 1;
        for (; at && load[at - 1].before > before; at--)
            load[at] = load[at - 1];
        load[at] = (struct load){socket, before};
    }
    return n;
}

/* Of these lanes, how many let it end first? Of equals the most: what is before them is partly on its way. */
static int how_many(const struct load *load, int lanes, size_t bytes)
{
    uint64_t least = UINT64_MAX;
    int best = 0;
    for (int n = 1; n <= lanes; n++) {
        uint64_t end = load[n - 1].before + bytes / (size_t)n;
        if (end <= least) {
            least = end;
            best = n;
        }
    }
    return best;
}

static void give(struct tcp_pieces *p, int socket, const struct hoccl_write *w, size_t at, size_t bytes)
{
    struct hoccl_lane_count *n = &p->count[socket];
    p->turn = socket;
    p->given[socket] += bytes;
    n->flight++;
    if (n->flight > n->most)
        n->most = n->flight;
    hoccl_tcp_lane_give_write(p->lane[socket], w, at, bytes, p->number);
}

static bool begin(struct tcp_pieces *p, const struct hoccl_write *w)
{
    struct tcp_row *r = add(&p->out, p->number + 1);
    if (!r)
        return false;
    p->number++;
    r->whole = r->left = w->bytes;
    r->mark = w->tag;
    return true;
}

/* n pieces, as equal as whole units are; the odd bytes go with the last. */
static void cut(struct tcp_pieces *p, const struct load *load, int n, const struct hoccl_write *w)
{
    size_t units = w->bytes / UNIT, at = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = i < n - 1 ? (units / (size_t)n + ((size_t)i < units % (size_t)n)) * UNIT : w->bytes - at;
        give(p, load[i].socket, w, at, bytes);
        at += bytes;
    }
}

bool hoccl_tcp_pieces_write(struct tcp_pieces *pieces, const struct hoccl_write *write)
{
    struct load load[HOCCL_LANES_MAX];
    size_t most = write->bytes / TCP_PIECE_LEAST;
    int lanes = most < 2 ? 1 : most < (size_t)pieces->lanes ? (int)most : pieces->lanes;
    int n = how_many(load, least_loaded(pieces, lanes, load), write->bytes);
    if (!n || (n > 1 && !begin(pieces, write)))
        return false;
    cut(pieces, load, n, write);
    return true;
}

bool hoccl_tcp_pieces_written(struct tcp_pieces *pieces, const struct tcp_news *news, uint64_t *tag)
{
    struct hoccl_lane_count *k = &pieces->count[news->socket];
    k->flight--;
    k->writes++;
    k->bytes += news->bytes;
    *tag = news->tag;
    return !news->whole || take_off(&pieces->out, find(&pieces->out, news->number), news->bytes);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

/* The row of a write; a number that is new makes one for each that it has passed by. */
static struct tcp_row *row_of(struct tcp_pieces *p, uint32_t number, const char **why)
{
    int32_t ahead = (int32_t)(number - p->seen);
    struct tcp_row *r = ahead > 0 ? NULL : find(&p->in, number);
    if (ahead <= 0 && !r)
        *why = "that write is whole already, or never was";
    if (ahead > 0 && (uint32_t)ahead > MOST_ROWS - p->in.count) {
        *why = "more writes would be under way than the sockets' buffers can hold";
        return NULL;
    }
    for (; ahead > 0; ahead--) {
        if (!make_room(&p->in)) {
            *why = "there is no host memory to count it";
            return NULL;
        }
        r = add(&p->in, ++p->seen);
    }
    return r;
}

bool hoccl_tcp_pieces_arrived(struct tcp_pieces *pieces, const struct tcp_news *news, const char **why)
{
    struct tcp_row *r = row_of(pieces, news->number, why);
    if (!r)
        return false;
    if (!r->whole) {
        r->whole = r->left = news->whole;
        r->mark = news->word;
    }
    if (r->whole != news->whole || r->mark != news->word)
        *why = "an earlier piece says otherwise of the write";
    else if (news->bytes > r->left)
        *why = "that is more than the write has left";
    return !*why && take_off(&pieces->in, r, news->bytes);
}
