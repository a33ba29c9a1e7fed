#!/usr/bin/env python3
"""Saving GPT-2 124M with its AdamW state: Tessera and PyTorch's DCP in turns, on this machine's disk.

    python3 bench/peers/compare_checkpoint.py --checkpoint-bench build/bin/checkpoint_bench
        --python VENV/bin/python --folder DIR [--turns 3] [--length 1024] [--threads 1]

VENV is a virtual environment with torch and numpy. Both write 1.49 GB (fp32 parameters and two
moments) from one process to a new folder below DIR, with fsync. What is compared:
  save    seconds for which training stops when it waits for the disk: Session::save, and
          torch.distributed.checkpoint.save
  async   seconds for which it stops when it does not: by how much the step that copies the state is
          longer than the plain step before it, and how long async_save takes to return
Medians over turns, and in brackets the quartiles.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

from repeats import show


def gpt2_shapes():
    width, layers = 768, 12
    shapes = {"wte": (50257, width), "wpe": (1024, width), "ln_f.w": (width,), "ln_f.b": (width,)}
    for layer in range(layers):
        block = {"ln_1.w": (width,), "ln_1.b": (width,), "qkv.w": (3 * width, width),
                 "qkv.b": (3 * width,), "proj.w": (width, width), "proj.b": (width,),
                 "ln_2.w": (width,), "ln_2.b": (width,), "fc.w": (4 * width, width),
                 "fc.b": (4 * width,), "out.w": (width, 4 * width), "out.b": (width,)}
        shapes.update({f"h.{layer}.{name}": shape for name, shape in block.items()})
    return shapes


def measure_dcp(folder):
    """In the environment with torch: prints the two times as JSON."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    dist.init_process_group("gloo", rank=0, world_size=1)
    state = {f"{name}:{kind}": torch.rand(shape) for name, shape in gpt2_shapes().items()
             for kind in ("parameter", "exp_avg", "exp_avg_sq")}
    size = sum(tensor.numel() * 4 for tensor in state.values())

    def run(call):
        shutil.rmtree(folder, ignore_errors=True)
        begin = time.perf_counter()
        future = call()
        returned = time.perf_counter() - begin
        if future is not None:
            future.result()
        shutil.rmtree(folder, ignore_errors=True)
        return returned

    run(lambda: dcp.async_save(state, checkpoint_id=folder))  # warms up: memory, threads
    def save():
        dcp.save(state, checkpoint_id=folder)
    result = {"bytes": size, "save": run(save),
              "async": run(lambda: dcp.async_save(state, checkpoint_id=folder))}
    dist.destroy_process_group()
    print(json.dumps(result))


def last_json(command):
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-bench")
    parser.add_argument("--python")
    parser.add_argument("--folder", required=True, help="on the disk that is measured")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--length", type=int, default=1024, help="tokens of Tessera's step")
    parser.add_argument("--threads", type=int, default=1, help="of Tessera's step")
    parser.add_argument("--measure-dcp", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure_dcp:
        return measure_dcp(args.folder)
    ours = {"save": [], "async": [], "step": []}
    theirs = {"save": [], "async": []}
    for turn in range(args.turns):
        folder = os.path.join(args.folder, "turn")
        own = last_json([args.checkpoint_bench, "--folder", folder, "--rounds", "2", "--json",
                         "--length", str(args.length), "--threads", str(args.threads)])
        ours["save"].append(own["save_seconds"][-1])
        ours["async"].append((own["copies"][-1] - 1.0) * own["plain_seconds"][-1])
        ours["step"].append(own["plain_seconds"][-1])
        peer = last_json([args.python, os.path.abspath(__file__), "--measure-dcp", "--folder", folder])
        theirs["save"].append(peer["save"])
        theirs["async"].append(peer["async"])
        print(f"turn {turn + 1} of {args.turns} done", file=sys.stderr)
    print(f"a step of {args.length} tokens on {args.threads} threads: {show(ours['step'], 3)} s")
    print("| training stops for | Tessera, s | DCP, s |")
    print("|---|---|---|")
    for kind in ("save", "async"):
        print(f"| {kind} | {show(ours[kind], 3)} | {show(theirs[kind], 3)} |")
    return None


if __name__ == "__main__":
    main()
