#!/usr/bin/env python3
"""Training steps of GPT-2 on one GPU: Tessera, llm.c and compiled PyTorch in turns.

    peers_in_turns.py --program build/bin/tessera --tokens FILE.bin --json OUT [--llm.c DIR] [--no-torch]
        [--sizes gpt2-1558m:16,gpt2-124m:16] [--turns 2] [--seconds 300]

A size is MODEL:MICRO-BATCH, the most important first. In each turn everyone takes as many steps (40, of
the small model 200), each in a process of its own, every second turn in reverse order; the last half of a
run counts, when the GPU is hot. bf16 over fp32 master weights, sequences of 1024, AdamW. Peers add
attention's gradients in no fixed order, and so does Tessera in its second row. The JSON file is rewritten
after each run. Exits with 1 if someone was not measured, unless --llm.c or PyTorch is not there.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import llm_c
import torch_speed
from gpu_run import NotMeasured, train, write_json

TESSERA, ANY_ORDER, LLM_C, TORCH = "Tessera", "Tessera, any order", "llm.c", "PyTorch, compiled"


class Turns:
    def __init__(self, args, folder):
        self.args, self.folder, self.end = args, folder, time.monotonic() + args.seconds
        self.rows, self.missing, self.program = [], {}, None

    def seconds_left(self):
        left = self.end - time.monotonic()
        if left <= 5:
            raise NotMeasured(f"no time left of {self.args.seconds:.0f} s")
        return left

    def contenders(self):
        ours = {TESSERA: [], ANY_ORDER: ["--attention", "cudnn", "--deterministic-attention", "false"]}
        runs = {name: lambda model, batch, flags=flags: train(
            self.args.program, self.args.tokens, model, batch, flags, self.seconds_left())
                for name, flags in ours.items()}
        if self.args.llm_c:
            runs[LLM_C] = self.llm_c
        if not self.args.no_torch:
            runs[TORCH] = lambda model, batch: torch_speed.measure_apart(model, batch, self.seconds_left())
        return runs

    def llm_c(self, model, micro_batch):
        if self.program is None:
            self.program = llm_c.build(self.args.llm_c, self.folder, self.seconds_left())
            llm_c.write_tokens(os.path.join(self.folder, "tokens.bin"), 2_000_000)
        return llm_c.measure(self.program, self.folder, model, micro_batch, self.seconds_left())

    def take(self, size):
        model, micro_batch = size.split(":")
        runs = self.contenders()
        for turn in range(self.args.turns):
            for name in (list(runs) if turn % 2 == 0 else reversed(list(runs))):
                if (size, name) in self.missing:
                    continue
                begin = time.monotonic()
                try:
                    row = runs[name](model, int(micro_batch))
                except (NotMeasured, subprocess.SubprocessError, OSError) as reason:
                    self.missing[size, name] = str(reason)
                    print(f"not measured: {size}, {name}: {reason}", flush=True)
                else:
                    self.rows.append({"model": model, "micro_batch": int(micro_batch), "who": name, "turn": turn,
                                      "tokens": int(micro_batch) * 1024, **row})
                    print(f"{time.monotonic() - begin:6.1f} s: {size}, {name}: {row['seconds'] * 1e3:.1f} ms", flush=True)
                self.write()

    def write(self):
        write_json(self.args.json, {"runs": self.rows,
                                    "missing": [f"{size}, {name}: {why}"
                                                for (size, name), why in self.missing.items()]})


def summaries(rows):
    """Of each model and contender: the median of its runs' medians, how far apart these are, joules of a
    token and clocks."""
    groups = {}
    for row in rows:
        groups.setdefault((row["model"], row["micro_batch"], row["who"]), []).append(row)
    for (model, micro_batch, who), runs in groups.items():
        seconds = [run["seconds"] for run in runs]
        middle = statistics.median(seconds)
        joules = [run["joules"] / run["tokens"] for run in runs if run.get("joules")]
        clocks = [run["gpu"]["sm_mhz"]["median"] for run in runs if run.get("gpu")]
        yield {"model": model, "micro_batch": micro_batch, "who": who, "turns": len(runs), "seconds": middle,
               "spread": (max(seconds) - min(seconds)) / middle,
               "tokens_per_second": runs[0]["tokens"] / middle,
               "joules_per_token": statistics.median(joules) if joules else None,
               "sm_mhz": statistics.median(clocks) if clocks else None}


def print_table(rows):
    all_of = list(summaries(rows))
    ours = {(row["model"], row["micro_batch"], row["who"]): row["seconds"] for row in all_of}
    print("\n| model | batch | who | ms | spread | tokens/s | mJ per token | MHz | Tessera's speed, of it |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for row in all_of:
        like = ours.get((row["model"], row["micro_batch"], TESSERA if row["who"] == TESSERA else ANY_ORDER))
        ratio = f"{row['seconds'] / like:.3f}" if like else "-"
        energy = f"{row['joules_per_token'] * 1e3:.1f}" if row["joules_per_token"] else "-"
        clock = f"{row['sm_mhz']:.0f}" if row["sm_mhz"] else "-"
        print(f"| {row['model']} | {row['micro_batch']} | {row['who']} | {row['seconds'] * 1e3:.1f} | "
              f"{row['spread']:.1%} | {row['tokens_per_second']:,.0f} | {energy} | {clock} | {ratio} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--llm.c", dest="llm_c", metavar="DIR", help="its sources")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--sizes", default="gpt2-1558m:16,gpt2-124m:16")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    if args.llm_c and not (shutil.which("make") and shutil.which("nvcc")):
        print("llm.c is left out: make or nvcc is not on the PATH")
        args.llm_c = None
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(args, folder)
        for size in args.sizes.split(","):
            turns.take(size)
    print_table(turns.rows)
    sys.exit(bool(turns.missing))


if __name__ == "__main__":
    main()
