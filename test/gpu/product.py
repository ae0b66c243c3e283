#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What compute loses beside communication: a bf16 product of 8192 x 8192 matrices, alone, beside plain copies to the other
GPU, beside HOCCL at full rate, and beside NCCL at full rate; both GPUs send to one another all the time.

usage: mpirun -np 2 product.py LIBHOCCL.SO      (PyTorch with CUDA; prints milliseconds and ratios, and JSON last)"""
import ctypes
import json
import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMIX_RANK", "0")))
torch.cuda.set_device(rank)
torch.zeros(1, device="cuda")
lib = ctypes.CDLL(sys.argv[1])
lib.HOCCL_GetLastError.restype = ctypes.c_char_p
WORLD, BYTE, PRODUCTS, SIZE, BYTES = ctypes.c_void_p(1), 16, 60, 8192, 1 << 30


def check(result, what):
    if result:
        raise SystemExit(f"rank {rank}: {what}: {lib.HOCCL_GetLastError().decode()}")


check(lib.HOCCL_Init(), "HOCCL_Init")
a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
out = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
incoming = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
there = torch.empty(BYTES, dtype=torch.uint8, device=f"cuda:{1 - rank}")
side, main = torch.cuda.Stream(), torch.cuda.current_stream()
c = torch.empty_like(a)


def hoccl(n, stream):
    for _ in range(n):
        check(lib.HOCCL_GroupStart(), "HOCCL_GroupStart")
        check(lib.HOCCL_Send(ctypes.c_void_p(out.data_ptr()), ctypes.c_size_t(BYTES), BYTE, 1 - rank, WORLD,
                             ctypes.c_void_p(stream.cuda_stream)), "HOCCL_Send")
        check(lib.HOCCL_Recv(ctypes.c_void_p(incoming.data_ptr()), ctypes.c_size_t(BYTES), BYTE, 1 - rank, WORLD,
                             ctypes.c_void_p(stream.cuda_stream)), "HOCCL_Recv")
        check(lib.HOCCL_GroupEnd(), "HOCCL_GroupEnd")


def copies(n, stream):
    with torch.cuda.stream(stream):
        for _ in range(n):
            there.copy_(out, non_blocking=True)


def nccl(n, stream):
    with torch.cuda.stream(stream):
        for _ in range(n):
            for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, 1 - rank), dist.P2POp(dist.irecv, incoming, 1 - rank)]):
                w.wait()


def meet():
    torch.cuda.synchronize()
    hoccl(1, side)
    torch.cuda.synchronize()


def measure(traffic, n):
    """Milliseconds of a product while `traffic` runs, and its rate; the traffic must outlast the products."""
    begin, end, t0, t1 = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    meet()
    if traffic:
        t0.record(side)
        traffic(n, side)
        t1.record(side)
    for _ in range(5):
        torch.matmul(a, b, out=c)
    begin.record(main)
    for _ in range(PRODUCTS):
        torch.matmul(a, b, out=c)
    end.record(main)
    end.synchronize()
    outlasted = not side.query() if traffic else True
    torch.cuda.synchronize()
    rate = n * BYTES / t0.elapsed_time(t1) * 1e-6 if traffic else 0
    return begin.elapsed_time(end) / PRODUCTS, rate, outlasted


results = {}
with_nccl = True
try:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("nccl", device_id=torch.device(f"cuda:{rank}"))
    nccl(2, side)
except Exception as error:  # noqa: BLE001
    with_nccl = False
    print(f"rank {rank}: no NCCL: {error}", file=sys.stderr)
for name, traffic in (("alone", None), ("copies", copies), ("HOCCL", hoccl), ("NCCL", nccl if with_nccl else None)):
    if name == "NCCL" and not with_nccl:
        continue
    best = min((measure(traffic, 60) for _ in range(3)), key=lambda r: r[0])
    results[name] = {"ms": best[0], "GBps": best[1], "outlasted": best[2]}
if rank == 0:
    for name, r in results.items():
        print(f"product beside {name:7s} {r['ms']:.4f} ms, {r['ms'] / results['alone']['ms']:.3f} of alone, "
              f"{r['ms'] / results['copies']['ms']:.3f} of beside copies; traffic {r['GBps']:.1f} GB/s each way"
              f"{'' if r['outlasted'] else ' (ENDED TOO EARLY)'}")
    print(json.dumps(results))
meet()
check(lib.HOCCL_Finalize(), "HOCCL_Finalize")
if with_nccl:
    dist.destroy_process_group()
