/* SPDX-License-Identifier: Apache-2.0 */
/* See virtual.h. */
#include "unit.h"

#include "virtual.h"

#include "base/setting.h"

#define EVENTS 4096
#define TICK HOCCL_US          /* nothing is due, and the code may wait for time to pass */
#define STANDSTILL (20 * HOCCL_MS)
#define ROOM 8                 /* writes that a lane takes */

static uint64_t now = HOCCL_S;

static uint64_t model_now(void)
{
    return now;
}

/* ---- what will happen -------------------------------------------------------------------------------------------- */

static struct event {
    uint64_t at, order;
    void *to; /* bytes are copied there, then */
    const void *from;
    size_t bytes;
    uint32_t *flag; /* this is written, */
    uint32_t value;
    struct hoccl_endpoint *endpoint; /* and this told */
    struct hoccl_transport_event news;
    struct hoccl_connection *sender; /* of a write that has left its lane */
    int lane;
    char message[HOCCL_MESSAGE_BYTES];
} events[EVENTS];
static int waiting;
static uint64_t orders;

static struct event *plan(uint64_t at)
{
    assert_true(waiting < EVENTS);
    events[waiting] = (struct event){.at = at, .order = ++orders};
    return &events[waiting++];
}

static int first_event(void)
{
    int first = 0;
    for (int i = 1; i < waiting; i++)
        if (events[i].at < events[first].at || (events[i].at == events[first].at && events[i].order < events[first].order))
            first = i;
    return first;
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

static void add_span(struct virtual_spans *s, uint64_t from, uint64_t to)
{
    if (!s)
        return;
    assert_true(s->count < (int)(sizeof s->from / sizeof *s->from));
    s->from[s->count] = from;
    s->to[s->count++] = to;
}

static CUresult copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    struct virtual_stream *s = (struct virtual_stream *)(void *)stream;
    uint64_t begun = s->busy > now ? s->busy : now;
    s->busy = begun + s->cost.start + bytes * s->cost.each / 1000;
    add_span(s->spans, begun, s->busy);
    struct event *e = plan(s->busy);
    e->to = to;
    e->from = from;
    e->bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult copy_between(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, stream);
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, (const void *)(uintptr_t)from, bytes, stream);
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, from, bytes, stream);
}

static CUresult write_word(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    const struct virtual_stream *s = (const struct virtual_stream *)(void *)stream;
    (void)flags;
    struct event *e = plan((s->busy > now ? s->busy : now) + s->cost.late);
    e->flag = (uint32_t *)(uintptr_t)address;
    e->value = value;
    return CUDA_SUCCESS;
}

static CUresult pin(void *p, size_t n, unsigned flags)
{
    (void)p, (void)n, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult unpin(void *p)
{
    (void)p;
    return CUDA_SUCCESS;
}

static void be_the_driver(void)
{
    hoccl_driver.MemcpyDtoDAsync = copy_between;
    hoccl_driver.MemcpyDtoHAsync = copy_out;
    hoccl_driver.MemcpyHtoDAsync = copy_in;
    hoccl_driver.StreamWriteValue32 = write_word;
    hoccl_driver.MemHostRegister = pin;
    hoccl_driver.MemHostUnregister = unpin;
}

/* ---- the wire ---------------------------------------------------------------------------------------------------- */

struct hoccl_endpoint {
    struct hoccl_transport_event news[EVENTS];
    char message[EVENTS][HOCCL_MESSAGE_BYTES];
    int head, tail;
};

struct hoccl_connection {
    struct hoccl_connection *peer;
    struct hoccl_endpoint *endpoint;
    void *context;
    uint64_t busy[HOCCL_LANES_MAX], link; /* until then */
    int flight[HOCCL_LANES_MAX];
    uint64_t bytes[HOCCL_LANES_MAX];
    struct virtual_spans *spans;
};

static struct hoccl_endpoint ends[2];
static struct hoccl_connection lines[2];
static const struct virtual_machine *machine;

static void tell(struct hoccl_connection *c, uint64_t at, struct hoccl_transport_event news, const void *message)
{
    struct event *e = plan(at);
    e->endpoint = c->endpoint;
    e->news = news;
    e->news.context = c->context;
    if (message)
        memcpy(e->message, message, news.bytes);
}

static HOCCL_Result wire_connection_open(struct hoccl_endpoint *endpoint, uint64_t id, const char *name, void *context,
                                         struct hoccl_connection **connection)
{
    struct hoccl_connection *c = &lines[id & 1];
    (void)name;
    *c = (struct hoccl_connection){.peer = &lines[!(id & 1)], .endpoint = endpoint, .context = context, .spans = c->spans};
    *connection = c;
    return HOCCL_SUCCESS;
}

static HOCCL_Result wire_join(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer)
{
    (void)peer;
    tell(c, now, (struct hoccl_transport_event){.kind = HOCCL_TRANSPORT_JOINED}, NULL);
    return HOCCL_SUCCESS;
}

static bool wire_message(struct hoccl_connection *c, const void *bytes, size_t count)
{
    tell(c->peer, now + machine->cost.late, (struct hoccl_transport_event){.kind = HOCCL_TRANSPORT_MESSAGE, .bytes = count}, bytes);
    return true;
}

/* The lane that is free first, as transports choose it. */
static int choose_lane(const struct hoccl_connection *c)
{
    int best = -1;
    for (int i = 0; i < machine->lanes; i++)
        if (c->flight[i] < ROOM && (best < 0 || c->busy[i] < c->busy[best]))
            best = i;
    return best;
}

static bool wire_write(struct hoccl_connection *c, const struct hoccl_write *w)
{
    int i = choose_lane(c);
    if (i < 0)
        return false;
    uint64_t begun = c->busy[i] > now ? c->busy[i] : now, alone = begun + machine->cost.start + w->bytes * machine->cost.lane / 1000;
    c->link = (c->link > begun ? c->link : begun) + w->bytes * machine->cost.link / 1000;
    c->busy[i] = alone > c->link ? alone : c->link;
    c->flight[i]++;
    c->bytes[i] += w->bytes;
    add_span(c->spans, begun, c->busy[i]);
    struct event *e = plan(c->busy[i]);
    e->to = (void *)(uintptr_t)(w->to.address + w->to_offset);
    e->from = (const void *)(uintptr_t)(w->from->key.address + w->offset);
    e->bytes = w->bytes;
    e->sender = c;
    e->lane = i;
    uint64_t seen = c->busy[i] + machine->cost.late;
    tell(c->peer, seen, (struct hoccl_transport_event){.kind = HOCCL_TRANSPORT_ARRIVED, .word = w->word, .bytes = w->bytes}, NULL);
    tell(c, seen, (struct hoccl_transport_event){.kind = HOCCL_TRANSPORT_WRITTEN, .tag = w->tag}, NULL);
    return true;
}

static bool wire_idle(const struct hoccl_connection *c)
{
    (void)c;
    return true;
}

static void wire_connection_close(struct hoccl_connection *c)
{
    (void)c;
}

static int wire_lanes(const struct hoccl_connection *c, struct hoccl_lane_count count[HOCCL_LANES_MAX])
{
    (void)c, (void)count;
    return machine->lanes;
}

static int wire_poll(struct hoccl_endpoint *e, struct hoccl_transport_event *events_out, int most)
{
    int n = 0;
    while (n < most && e->head != e->tail) {
        events_out[n] = e->news[e->head % EVENTS];
        events_out[n].message = e->message[e->head++ % EVENTS];
        n++;
    }
    return n;
}

static struct hoccl_transport wire_table = {
    .name = "model", .connection_open = wire_connection_open, .join = wire_join, .message = wire_message, .write = wire_write,
    .idle = wire_idle, .connection_close = wire_connection_close, .lanes = wire_lanes, .poll = wire_poll,
};

/* ---- a node ------------------------------------------------------------------------------------------------------ */

static void open_engine(struct virtual_node *n, enum hoccl_direction d, struct virtual_spans *spans)
{
    const struct hoccl_pipe p = hoccl_pipe_make(machine->on_gpu, &machine->cost, machine->lanes);
    bool out = d == HOCCL_PUSH || d == HOCCL_D2H;
    struct hoccl_engine *e = &n->gpu.engine[d];
    n->stream[d] = (struct virtual_stream){.cost = out ? p.engine : p.far, .spans = spans};
    hoccl_list_init(&e->queue);
    hoccl_pace_init(&e->pace, hoccl_settings.chunk, (unsigned)hoccl_settings.share);
    e->direction = d;
    e->submitter = &n->gpu.submitter;
    e->stream = (CUstream)(void *)&n->stream[d];
    e->done.host = &n->word[d];
    e->done.device = (CUdeviceptr)(uintptr_t)&n->word[d];
}

/* The pool's place in the host's memory passes for another GPU's where the machine has its slots there. */
static void open_pool(struct hoccl_pool *pool)
{
    OK(hoccl_pool_open(pool, NULL, HOCCL_POOL_HOST, -1, "the test"));
    pool->region.key.address = (uint64_t)(uintptr_t)pool->host;
    pool->place = machine->on_gpu ? HOCCL_POOL_GPU : HOCCL_POOL_HOST;
    pool->memory.address = (CUdeviceptr)(uintptr_t)pool->host;
}

static void close_pool(struct hoccl_pool *pool)
{
    assert_int_equal(pool->idle, pool->count);
    pool->place = HOCCL_POOL_HOST;
    hoccl_pool_close(pool);
}

static void open_node(struct virtual_node *n, int rank, struct virtual_spans *engine)
{
    struct hoccl_wire *w = calloc(1, sizeof *w);
    assert_non_null(w);
    *n = (struct virtual_node){.wire = w, .gpu.wire = w};
    for (int d = 0; d < HOCCL_DIRECTIONS; d++)
        open_engine(n, (enum hoccl_direction)d, engine);
    w->transport = &wire_table;
    w->endpoint = &ends[rank];
    w->gpu = &n->gpu;
    w->open = 1;
    for (struct hoccl_list **l = (struct hoccl_list *[]){&w->fars, &w->latent, &w->filling, &w->emptying, &w->sends, &w->receives, &w->early, NULL}; *l; l++)
        hoccl_list_init(*l);
    hoccl_order_open(&w->order, &wire_table, w->endpoint);
    open_pool(&w->out);
    open_pool(&w->in);
    hoccl_pool_open_user(&w->user_out);
    hoccl_pool_open_user(&w->user_in);
    hoccl_registry_init(&w->registry);
    OK(hoccl_far_make(&n->far));
    n->far->wire = w;
    n->far->rank = !rank;
    n->far->own_rank = rank;
    n->far->id = (uint64_t)rank;
    n->peer = (struct hoccl_peer){.rank = !rank, .far = n->far, .board = n->far->board, .totals = &n->far->totals};
}

/* The node's messages lie in one registered segment. */
static void register_all(struct virtual_node *n, unsigned char *address, size_t bytes)
{
    struct hoccl_registration *r = calloc(1, sizeof *r + sizeof *r->segment);
    struct hoccl_segment *s = calloc(1, sizeof *s);
    assert_true(r && s);
    *s = (struct hoccl_segment){.low = (uintptr_t)address, .high = (uintptr_t)address + bytes, .base = (uintptr_t)address, .users = 1,
                                .region.key.address = (uintptr_t)address};
    *r = (struct hoccl_registration){.number = 1, .holders = 1, .low = s->low, .high = s->high, .count = 1};
    r->segment[0] = s;
    hoccl_list_append(&n->wire->registry.registrations, &r->link);
    n->registration = r;
}

static void close_node(struct virtual_node *n)
{
    if (n->registration) {
        assert_int_equal(n->registration->flows, 0);
        free(n->registration->segment[0]);
        free(n->registration);
    }
    assert_true(n->wire->user_out.idle == n->wire->user_out.count && n->wire->user_in.idle == n->wire->user_in.count);
    pthread_mutex_destroy(&n->wire->registry.lock);
    hoccl_far_close(n->far);
    hoccl_far_free(n->far);
    close_pool(&n->wire->out);
    close_pool(&n->wire->in);
    free(n->wire);
}

static bool step(struct virtual_node *n, struct hoccl_flow *flows, int count)
{
    bool moved = false;
    for (int d = 0; d < HOCCL_DIRECTIONS; d++)
        moved |= hoccl_engine_step(&n->gpu.engine[d]);
    while (hoccl_submitter_step(&n->gpu.submitter))
        moved = true;
    moved |= hoccl_wire_step(n->wire);
    for (int i = 0; i < count; i++)
        OK(hoccl_flow_step(&n->gpu, &flows[i], &moved));
    return moved;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static void happen(void)
{
    int i = first_event();
    struct event e = events[i];
    events[i] = events[--waiting];
    now = e.at > now ? e.at : now;
    if (e.bytes && e.to)
        memcpy(e.to, e.from, e.bytes);
    if (e.flag)
        hoccl_publish(e.flag, e.value);
    if (e.sender)
        e.sender->flight[e.lane]--;
    if (!e.endpoint)
        return;
    assert_true(e.endpoint->tail - e.endpoint->head < EVENTS);
    e.endpoint->news[e.endpoint->tail % EVENTS] = e.news;
    memcpy(e.endpoint->message[e.endpoint->tail++ % EVENTS], e.message, sizeof e.message);
}

static bool busy_at(const struct virtual_spans *s, uint64_t t)
{
    for (int i = 0; i < s->count; i++)
        if (s->from[i] <= t && t < s->to[i])
            return true;
    return false;
}

/* Looked at every 500 ns. */
static uint64_t all_busy(const struct virtual_spans *a, const struct virtual_spans *b, const struct virtual_spans *c, uint64_t from,
                         uint64_t to)
{
    uint64_t sum = 0;
    for (uint64_t t = from; t < to; t += 500)
        sum += busy_at(a, t) && busy_at(b, t) && busy_at(c, t) ? 500 : 0;
    return sum;
}

static bool all_done(const struct hoccl_flow *flow, int count)
{
    for (int i = 0; i < count; i++)
        if (flow[i].state != HOCCL_FLOW_DONE)
            return false;
    return true;
}

static bool run(struct virtual_node node[2], struct hoccl_flow *send, struct hoccl_flow *receive, int messages)
{
    uint64_t moved_at = now;
    while (!all_done(send, messages) || !all_done(receive, messages)) {
        bool moved = step(&node[0], send, messages);
        moved |= step(&node[1], receive, messages);
        if (moved) {
            moved_at = now;
            continue;
        }
        if (waiting)
            happen();
        else
            now += TICK;
        if (now - moved_at > STANDSTILL)
            return false;
    }
    return true;
}

static struct hoccl_flow flow_of(struct virtual_node *n, bool is_send, int number, void *address, size_t bytes)
{
    return (struct hoccl_flow){.is_send = is_send, .state = HOCCL_FLOW_WAITING, .peer = &n->peer, .memory.registered = machine->registered,
                               .number = (uint32_t)number, .op = address, .header.bytes = bytes, .address = address};
}

static void settle(struct virtual_node node[2])
{
    while (waiting || step(&node[0], NULL, 0) || step(&node[1], NULL, 0))
        if (waiting)
            happen();
}

bool virtual_run(const struct virtual_machine *m, int messages, size_t bytes, struct virtual_result *result)
{
    static struct virtual_node node[2];
    static struct virtual_spans engine[2], wire;
    struct hoccl_flow *flow = calloc(2 * (size_t)messages, sizeof *flow);
    unsigned char *from = malloc(messages * bytes), *to = calloc((size_t)messages, bytes);
    assert_true(flow && from && to);
    for (size_t i = 0; i < messages * bytes; i++)
        from[i] = (unsigned char)(i * 31 + (i >> 9));
    machine = m;
    wire_table.cost = m->cost;
    hoccl_clock = model_now;
    be_the_driver();
    OK(hoccl_settings_load());
    memset(ends, 0, sizeof ends);
    engine[0].count = engine[1].count = wire.count = 0;
    for (int i = 0; i < 2; i++) {
        open_node(&node[i], i, &engine[i]);
        lines[i].spans = i ? NULL : &wire;
        hoccl_far_join(node[i].far);
    }
    settle(node);
    for (int i = 0; i < 2; i++) {
        if (m->registered)
            register_all(&node[i], i ? to : from, (size_t)messages * bytes);
        if (m->depth)
            node[i].far->ahead = m->depth;
    }
    for (int i = 0; i < messages; i++) {
        flow[i] = flow_of(&node[0], true, i, from + (size_t)i * bytes, bytes);
        flow[messages + i] = flow_of(&node[1], false, i, to + (size_t)i * bytes, bytes);
    }
    bool good = run(node, flow, flow + messages, messages);
    *result = (struct virtual_result){.begun = m->registered ? wire.from[0] : engine[0].from[0], .ended = now, .depth = node[1].far->ahead, .chunk = flow[messages].wire.chunk};
    memcpy(result->lane, lines[0].bytes, sizeof result->lane);
    result->all_busy = all_busy(&engine[0], &wire, &engine[1], result->begun, result->ended);
    assert_true(!good || !memcmp(from, to, (size_t)messages * bytes));
    settle(node);
    for (int i = 0; i < 2; i++)
        close_node(&node[i]);
    hoccl_clock = NULL;
    free(flow);
    free(from);
    free(to);
    return good;
}
