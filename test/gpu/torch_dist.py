# SPDX-License-Identifier: Apache-2.0
"""torch.distributed (backend nccl) with HOCCL in NCCL's place: what only moves data, every value checked; reductions are refused.

usage: mpirun -np N -x LD_PRELOAD=.../libhoccl_nccl.so -x MASTER_ADDR=... -x MASTER_PORT=... python torch_dist.py [default [ROUNDS]]
The program computes on a stream of its own, and has cuBLAS loaded first; with "default" it does neither, and then needs
HOCCL_BLOCKING=on, for what would stand in an operation's way (doc/nccl.md). Ranks share GPUs where there are more ranks than GPUs."""
import os
import sys
import time
import torch
import torch.distributed as dist

default = len(sys.argv) > 1 and sys.argv[1] == "default"
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 2
rank = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))
size = int(os.environ.get("WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", 1)))
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size)
dev = torch.device("cuda", torch.cuda.current_device())


def fill(who, what, n, dtype=torch.float32):
    return ((torch.arange(n, device=dev) * 7 + who * 31 + what * 1009) % 251).to(dtype)


def same(got, want, what):
    if not torch.equal(got, want):
        bad = (got != want).nonzero()[0].tolist()
        sys.exit(f"rank {rank}: {what}: wrong at {bad}: {got[tuple(bad)]} not {want[tuple(bad)]}")


def collectives(n, dtype, group=None):
    ranks = dist.get_process_group_ranks(group) if group else list(range(size))
    g, me = len(ranks), ranks.index(rank)
    mine = fill(rank, n, n, dtype)
    out = torch.empty(n * g, device=dev, dtype=dtype)
    dist.all_gather_into_tensor(out, mine, group=group)
    same(out, torch.cat([fill(r, n, n, dtype) for r in ranks]), "all_gather_into_tensor")
    parts = [torch.empty(n, device=dev, dtype=dtype) for _ in ranks]
    dist.all_gather(parts, mine, group=group)
    for r, p in zip(ranks, parts):
        same(p, fill(r, n, n, dtype), "all_gather")
    b = mine.clone()
    dist.broadcast(b, src=ranks[-1], group=group)
    same(b, fill(ranks[-1], n, n, dtype), "broadcast")
    src = torch.cat([fill(rank * 100 + r, n, n, dtype) for r in ranks])
    got = torch.empty_like(src)
    dist.all_to_all_single(got, src, group=group)
    same(got, torch.cat([fill(r * 100 + rank, n, n, dtype) for r in ranks]), "all_to_all_single")
    split_in = [n + r for r in range(g)]
    split_out = [n + me] * g
    src = torch.cat([fill(rank * 100 + r, n, c, dtype) for r, c in zip(ranks, split_in)])
    got = torch.empty(sum(split_out), device=dev, dtype=dtype)
    dist.all_to_all_single(got, src, split_out, split_in, group=group)
    same(got, torch.cat([fill(r * 100 + rank, n, n + me, dtype) for r in ranks]), "all_to_all_single, uneven")
    to = ranks[(me + 1) % g]
    frm = ranks[(me - 1) % g]
    got = torch.empty(n, device=dev, dtype=dtype)
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, to, group), dist.P2POp(dist.irecv, got, frm, group)]):
        w.wait()
    same(got, fill(frm, n, n, dtype), "batch_isend_irecv")
    if me == 0:
        gathered = [torch.empty(n, device=dev, dtype=dtype) for _ in ranks]
        dist.gather(mine, gathered, dst=ranks[0], group=group)
        for r, p in zip(ranks, gathered):
            same(p, fill(r, n, n, dtype), "gather")
        dist.scatter(got, [fill(50 + r, n, n, dtype) for r in ranks], src=ranks[0], group=group)
    else:
        dist.gather(mine, None, dst=ranks[0], group=group)
        dist.scatter(got, None, src=ranks[0], group=group)
    same(got, fill(50 + rank, n, n, dtype), "scatter")


def overlapped(n):
    """Communication beside compute, several in flight, results used on the compute stream only: no host synchronisation between."""
    a = torch.randn(512, 512, device=dev)
    works, outs = [], []
    for i in range(16):
        mine = fill(rank, i, n)
        out = torch.empty(n * size, device=dev)
        works.append(dist.all_gather_into_tensor(out, mine, async_op=True))
        outs.append(out)
        a = torch.tanh(a @ a)
    for i, (w, o) in enumerate(zip(works, outs)):
        w.wait()
        same(o, torch.cat([fill(r, i, n) for r in range(size)]), "overlapped all_gather")


def pairs(n):
    """Plain send and recv, as pipeline stages do: even ranks send first."""
    other = rank ^ 1
    if other >= size:
        return
    got = torch.empty(n, device=dev)
    for i in range(5):
        if rank % 2 == 0:
            dist.send(fill(rank, i, n), other)
            dist.recv(got, other)
        else:
            dist.recv(got, other)
            dist.send(fill(rank, i, n), other)
        same(got, fill(other, i, n), "send and recv")


begun = time.time()
if not default:
    torch.cuda.set_stream(torch.cuda.Stream())
    a = torch.randn(512, 512, device=dev)
    torch.tanh(a @ a)
    torch.cuda.synchronize()
groups = [dist.new_group(list(range(k, size, 2))) for k in range(min(2, size))] if size > 2 else []
mine = [g for k, g in enumerate(groups) if rank % 2 == k]
for i in range(rounds):
    for n in (1, 1000, 1 << 20):
        for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.int64):
            collectives(n, dtype)
            for g in mine:
                collectives(n, dtype, g)
    overlapped(1 << 18)
    pairs(1 << 16)
    out = torch.empty(1000 * size, device=dev)
    dist.all_gather_into_tensor(out, fill(rank, i, 1000))
    if not torch.equal(out.cpu(), torch.cat([fill(r, i, 1000) for r in range(size)]).cpu()):
        sys.exit(f"rank {rank}: .cpu() behind all_gather_into_tensor: wrong")
    box = [{"rank": rank, "round": i}]
    dist.broadcast_object_list(box, src=size - 1)
    assert box[0] == {"rank": size - 1, "round": i}, box
    everyone = [None] * size
    dist.all_gather_object(everyone, ("hello", rank))
    assert everyone == [("hello", r) for r in range(size)], everyone
try:
    dist.all_reduce(torch.ones(4, device=dev))
    sys.exit(f"rank {rank}: a reduction was not refused")
except dist.DistBackendError as e:
    if "needs SMs" not in str(e):
        raise
torch.cuda.synchronize()
dist.destroy_process_group()
print(f"rank {rank} of {size}: torch {torch.__version__}: every value right, {time.time() - begun:.1f} s")
