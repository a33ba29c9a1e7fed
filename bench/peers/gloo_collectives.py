#!/usr/bin/env python3
"""Collectives of gloo through torch.distributed, for compare_collectives.py, which starts a process
for each rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    gloo_collectives.py --iterations 20 --warm-ups 5 --repeats 5 65536 1048576 ...

Rank 0 prints lines as mpi_collectives does: collective, bytes, microseconds on the slowest rank.
"""

import argparse
import time

import torch
import torch.distributed as dist


def collectives(size):
    """Calls by name on buffers of `size` bytes together, fp32. Gloo has no reduce_scatter."""
    ranks = dist.get_world_size()
    part = size // 4 // ranks
    whole = torch.zeros(part * ranks)
    mine = torch.zeros(part)
    parts = list(whole.chunk(ranks)) if part else []
    return part * ranks * 4, {
        "all_gather": lambda: dist.all_gather(parts, mine),
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }


def slowest(seconds):
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--warm-ups", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("sizes", type=int, nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for size in options.sizes:
        size, calls = collectives(size)
        for name, call in calls.items():
            for _ in range(options.warm_ups):
                call()
            for _ in range(options.repeats):
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(options.iterations):
                    call()
                seconds = slowest((time.perf_counter() - begin) / options.iterations)
                if dist.get_rank() == 0:
                    print(name, size, f"{seconds * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
