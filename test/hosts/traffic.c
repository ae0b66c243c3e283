/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a test over several hosts: "traffic TRANSPORT FOLDER RANK SIZE MODE". Ranks exchange cards through files in
 * FOLDER, which all hosts see. RANK and SIZE may be "-": those of Open MPI then.
 *
 *   suite   all pairs: messages, writes of many sizes, every byte checked, closed in good order
 *   busy    two ranks: both write until the connection breaks (the file busy.RANK says that data moves)
 *   idle    two ranks: nothing moves until the connection breaks (the file idle.RANK says that it waits)
 *   refuse  the connection must break before it is joined
 *
 * The modes that wait for an end print its text and succeed when it comes. */
#include "../conform/ends.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"

#include <string.h>
#include <unistd.h>

#define RANKS 16
#define MIB ((size_t)1 << 20)

static struct end end;
static int rank, size;
static const char *folder;

static void path_of(char *path, size_t bytes, const char *what, int of)
{
    snprintf(path, bytes, "%s/%s.%d", folder, what, of);
}

/* A file that is whole as soon as it is there. */
static void publish(const char *what, const void *data, size_t bytes)
{
    char path[512], fresh[520];
    path_of(path, sizeof path, what, rank);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *f = fopen(fresh, "w");
    CHECK(f && fwrite(data, 1, bytes, f) == bytes && !fclose(f) && !rename(fresh, path), "%s: %m", path);
}

/* Of another rank; polls meanwhile. */
static void await(const char *what, int of, void *data, size_t bytes)
{
    char path[512];
    FILE *f;
    uint64_t limit = end_deadline();
    path_of(path, sizeof path, what, of);
    while (!(f = fopen(path, "r"))) {
        CHECK(!end_late(limit), "rank %d never came to %s", of, what);
        end_poll(&end);
        hoccl_sleep(HOCCL_MS);
    }
    CHECK(fread(data, 1, bytes, f) == bytes, "%s is short", path);
    fclose(f);
}

static void meet(const char *what)
{
    char c = 1;
    publish(what, &c, 1);
    for (int i = 0; i < size; i++)
        await(what, i, &c, 1);
}

/* Both ends of a pair name it alike; the lower rank dials. */
static void connect_to(struct line *line, int peer)
{
    struct hoccl_endpoint_card card;
    int low = rank < peer ? rank : peer, high = rank < peer ? peer : rank;
    await("card", peer, &card, sizeof card);
    line_open(line, &end, (uint64_t)(low * RANKS + high) << 1 | (rank > peer), &card);
}

static void join_all(struct line line[RANKS])
{
    for (int i = 0; i < size; i++)
        if (i != rank)
            connect_to(&line[i], i);
    for (int i = 0; i < size; i++)
        if (i != rank)
            UNTIL(&end, NULL, line[i].joined || line[i].broken);
    for (int i = 0; i < size; i++)
        CHECK(i == rank || !line[i].broken, "%s", line[i].text);
}

/* ---- suite ------------------------------------------------------------------------------------------------------- */

static size_t most = 4 * MIB;
static const size_t sizes[] = {1, 7, 100, 1500, 4096, 65537, 300001, 1 << 20, (4 << 20) - 1};
#define SIZES (sizeof sizes / sizeof *sizes)

/* Where a write of size i of a rank lies in the peer's buffer. */
static size_t place(size_t i)
{
    size_t at = 0;
    for (size_t k = 0; k < i; k++)
        at += sizes[k] <= most ? sizes[k] : 0;
    return at;
}

static void run_pair(struct line *l, int peer, struct buffer *out, struct buffer *in)
{
    struct hoccl_region_key key;
    unsigned writes = 0;
    give_message(l, NULL, &in->region.key, sizeof in->region.key);
    UNTIL(&end, NULL, l->messages >= 1);
    memcpy(&key, l->first, sizeof key);
    for (size_t i = 0; i < SIZES; i++)
        if (sizes[i] <= most) {
            give_write(l, NULL, out, place(i), key, place(i), sizes[i], (uint32_t)i);
            writes++;
        }
    UNTIL(&end, NULL, l->arrived == writes && l->written == writes);
    for (size_t i = 0; i < SIZES; i++)
        CHECK(sizes[i] > most || (l->seen[i] == 1 && l->done[i] == 1), "write %zu", i);
    CHECK(pattern_holds(in->bytes, in->size, (uint64_t)peer), "bytes from rank %d differ", peer);
    buffer_guards(in);
}

static void run_suite(void)
{
    static struct line line[RANKS];
    static struct buffer out, in[RANKS];
    join_all(line);
    buffer_open(&out, &end, place(SIZES), 3, 0);
    pattern_fill(out.bytes, out.size, (uint64_t)rank);
    for (int i = 0; i < size; i++)
        buffer_open(&in[i], &end, place(SIZES), 1, 0);
    for (int i = 0; i < size; i++)
        if (i != rank)
            run_pair(&line[i], i, &out, &in[i]);
    meet("done");
    for (int i = 0; i < size; i++)
        if (rank < i)
            line_close(&line[i]);
    for (int i = 0; i < rank; i++) {
        UNTIL(&end, NULL, line[i].closed || line[i].broken);
        CHECK(line[i].closed, "%s", line[i].text);
        line_close(&line[i]);
    }
    for (int i = 0; i < size; i++)
        buffer_close(&in[i]);
    buffer_close(&out);
    printf("rank %d: %zu bytes from each of %d ranks\n", rank, place(SIZES), size - 1);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* Seconds since the test did it, if it has told when. */
static double since_begun(void)
{
    char path[512];
    double begun = 0;
    struct timespec now;
    snprintf(path, sizeof path, "%s/begun", folder);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%lf", &begun) != 1)
        begun = 0;
    if (f)
        fclose(f);
    clock_gettime(CLOCK_REALTIME, &now);
    return begun > 0 ? (double)now.tv_sec + (double)now.tv_nsec / 1e9 - begun : 0;
}

static void report(struct line *l)
{
    CHECK(l->broken, "closed in good order");
    printf("rank %d: %.2f s afterwards\n", rank, since_begun());
    printf("rank %d: broken: %s\n", rank, l->text);
    CHECK(strstr(l->text, rank ? "rank 0" : "rank 1"), "it does not name the peer");
    line_close(l);
}

static void run_busy(void)
{
    static struct line l[RANKS];
    struct hoccl_region_key key;
    struct buffer out, in;
    bool told = false;
    join_all(l);
    struct line *p = &l[1 - rank];
    buffer_open(&out, &end, MIB, 0, 1);
    buffer_open(&in, &end, MIB, 0, 2);
    give_message(p, NULL, &in.region.key, sizeof in.region.key);
    UNTIL(&end, NULL, p->messages >= 1);
    memcpy(&key, p->first, sizeof key);
    struct hoccl_write w = {.from = &out.region, .to = key, .bytes = MIB};
    unsigned given = 0, most_given = 0;
    for (uint64_t limit = end_deadline(); !p->broken && !p->closed;) {
        while (transport->write(p->connection, &w))
            given++;
        most_given = given - p->written > most_given ? given - p->written : most_given;
        end_poll(&end);
        if (!told && p->arrived >= 8) {
            publish("busy", "1", 1);
            told = true;
        }
        CHECK(!end_late(limit), "the connection did not break");
    }
    printf("rank %d: up to %u writes under way\n", rank, most_given);
    report(p);
    buffer_close(&out);
    buffer_close(&in);
}

static void run_idle(void)
{
    static struct line l[RANKS];
    join_all(l);
    struct line *p = &l[1 - rank];
    publish("idle", "1", 1);
    for (uint64_t limit = end_deadline(); !p->broken && !p->closed;) {
        hoccl_doorbell_announce(&end.bell);
        if (transport->arm(end.endpoint))
            hoccl_doorbell_cancel(&end.bell);
        else
            hoccl_doorbell_sleep(&end.bell, LIMIT_S * HOCCL_S);
        end_poll(&end);
        CHECK(!end_late(limit), "the connection did not break");
    }
    report(p);
}

static void run_refuse(void)
{
    static struct line l;
    connect_to(&l, 1 - rank);
    UNTIL(&end, NULL, l.joined || l.broken);
    CHECK(!l.joined, "joined");
    report(&l);
}

static int number(const char *text, const char *variable)
{
    if (!strcmp(text, "-"))
        text = getenv(variable);
    CHECK(text, "no %s", variable);
    return atoi(text);
}

int main(int argc, char **argv)
{
    char text[1024];
    CHECK(argc == 6, "traffic TRANSPORT FOLDER RANK SIZE MODE");
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("HOCCL_NET", argv[1], 1);
    CHECK(!hoccl_settings_load(), "%s", hoccl_error_text());
    transport = hoccl_transport_choose();
    CHECK(transport, "%s", hoccl_error_text());
    folder = argv[2];
    rank = number(argv[3], "OMPI_COMM_WORLD_RANK");
    size = number(argv[4], "OMPI_COMM_WORLD_SIZE");
    if (getenv("TRAFFIC_MOST"))
        most = strtoul(getenv("TRAFFIC_MOST"), NULL, 10);
    end_open(&end);
    transport->describe(end.endpoint, text, sizeof text);
    printf("rank %d: %s\n", rank, text);
    publish("pid", text, (size_t)snprintf(text, sizeof text, "%d", (int)getpid()));
    publish("card", &end.card, sizeof end.card);
    if (!strcmp(argv[5], "suite"))
        run_suite();
    else if (!strcmp(argv[5], "busy"))
        run_busy();
    else if (!strcmp(argv[5], "idle"))
        run_idle();
    else
        run_refuse();
    end_close(&end);
    return 0;
}
