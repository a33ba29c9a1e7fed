#!/usr/bin/env python3
"""Tessera and PyTorch in turns on one GPU: GPT-2 in bf16, sequences of 1024, AdamW in fp32.

    compare_torch_gpu.py --program build/bin/tessera --tokens FILE.bin --json OUT [--seconds 220]
        [--sizes gpt2-124m:16:3,gpt2-350m:16:1] [--device cuda] [--sequence-length 1024]
        [--tessera-flags "..."] [--no-torch] [--torch-flags "..."]

A size is MODEL:MICRO-BATCH:TURNS, the most important first. Measures one turn of those that have
several, then what full sharding costs, then their other turns, then the sizes of one turn, until the
seconds are over. The JSON file is rewritten after each measurement. A size's numbers are medians over
an odd number of turns of each one's median step. PyTorch compiles a size once, in a process that stays
for all turns.

Exits with 1 if anything was not measured; what was, is in the file.
"""

import argparse
import json
import queue
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import os

PEAK = 989e12  # dense bf16 of an H100 or H200 SXM, by its data sheet
STEPS, WARMUP_STEPS = 10, 4
HERE = os.path.dirname(os.path.abspath(__file__))


class NotMeasured(Exception):
    pass


def median(values):
    """Over as many as are odd: the mean of the middle two is nobody's measurement."""
    return statistics.median(values[:len(values) - 1 + len(values) % 2])


class Torch:
    """torch_gpu_step.py, started once."""

    def __init__(self, flags):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "torch_gpu_step.py"), *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put({"error": "PyTorch's process has ended"})

    def measure(self, seconds_left, steps, **request):
        try:
            self.process.stdin.write(json.dumps({**request, "steps": steps}) + "\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=max(seconds_left, 1))
        except (BrokenPipeError, queue.Empty) as error:
            self.process.kill()  # its next answer would be to this question
            raise NotMeasured(f"PyTorch: no answer within {seconds_left:.0f} s") from error
        if "error" in answer:
            raise NotMeasured("PyTorch: " + answer["error"])
        return answer


class Comparison:
    def __init__(self, args):
        self.args = args
        self.begin = time.monotonic()
        self.sizes = [(name, int(batch), int(turns)) for name, batch, turns in
                      (size.split(":") for size in args.sizes.split(","))]
        self.results = {"sequence_length": args.sequence_length, "complete": False, "sizes": {}}
        self.torch = None if args.no_torch else Torch(
            ["--device", args.device, *shlex.split(args.torch_flags)])

    def seconds_left(self):
        left = self.args.seconds - (time.monotonic() - self.begin)
        if left <= 1:
            raise NotMeasured(f"no time left of {self.args.seconds:.0f} s")
        return left

    def save(self):
        with open(self.args.json + ".new", "w") as file:
            json.dump(self.results, file, indent=2)
        os.replace(self.args.json + ".new", self.args.json)

    def tessera(self, model, batch, *flags):
        if self.args.device == "cuda":
            # Like PyTorch's, whose backward adds in no fixed order either.
            flags = ["--attention", "cudnn", "--deterministic-attention", "false", *flags]
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as log:
            try:
                subprocess.run(
                    [self.args.program, "train", "--no-default-config", "--device", self.args.device,
                     "--data", self.args.tokens, "--model", model, "--vocab-size", "50257",
                     "--micro-batch", str(batch), "--sequence-length",
                     str(self.args.sequence_length), "--precision", "bf16",
                     "--steps", str(WARMUP_STEPS + STEPS), "--sample-tokens", "0", "--quiet",
                     "--parameters-hash", "false", "--log", log.name,
                     *shlex.split(self.args.tessera_flags), *flags],
                    check=True, capture_output=True, text=True, timeout=self.seconds_left())
            except subprocess.TimeoutExpired as error:
                raise NotMeasured(f"no time left of {self.args.seconds:.0f} s") from error
            except subprocess.CalledProcessError as error:
                raise NotMeasured(f"{shlex.join(error.cmd)}: {error.stderr[-2000:]}") from error
            lines = [json.loads(line) for line in open(log.name)]
        steps = [line for line in lines if line["kind"] == "step"]
        summary = next(line for line in lines if line["kind"] == "summary")
        seconds = statistics.median(step["seconds"] for step in steps[WARMUP_STEPS:])
        return seconds, steps[0]["tokens"], summary

    def turn(self, model, batch):
        """One of Tessera, one of PyTorch; a row of the results, which gets better turn by turn."""
        size = self.results["sizes"].setdefault(
            model, {"micro_batch": batch, "tessera_seconds": [], "torch_seconds": []})
        seconds, tokens, summary = self.tessera(model, batch)
        if self.args.device == "cuda" and not summary["cuda_graph"]:
            raise NotMeasured("Tessera's steps were not replayed as a CUDA graph")
        size["tessera_seconds"].append(seconds)
        step = median(size["tessera_seconds"])
        peak = summary["matmul_flops_per_second"]
        if summary["mfu"] is None:
            raise NotMeasured("others use the GPU: no peak of matrix products was measured")
        flops_per_token = summary["mfu"] * peak / summary["tokens_per_second"]
        flops = flops_per_token * tokens / step
        size.update(tokens_per_second=tokens / step, mfu_of_989=flops / PEAK,
                    mfu_of_matmul=flops / peak, matmul_flops_per_second=peak,
                    peak_bytes=summary["peak_bytes"]["measured"]["total"])
        self.save()
        if self.torch is None:
            return
        answer = self.torch.measure(self.seconds_left(), STEPS, model=model, micro_batch=batch,
                                    sequence_length=self.args.sequence_length)
        size["torch_seconds"].append(statistics.median(answer["step_seconds"]))
        size.update(torch=answer["torch"], torch_peak_bytes=answer["peak_bytes"],
                    ratio=median(size["torch_seconds"]) / step)
        self.save()

    def sharded(self, model, batch):
        """What full_shard costs against no_shard, with one rank and with four that share the GPU."""
        # Ranks that share a GPU replay no graph, and would time each action for want of one.
        four = ["--group", "thread", "--ranks", "4", "--trace", "false"]
        costs = {}
        for ranks, flags in (("1", []), ("4", four)):
            part = max(batch // int(ranks), 1)
            full, _, summary = self.tessera(model, part, "--strategy", "full_shard", *flags)
            none = self.tessera(model, part, "--strategy", "no_shard", *flags)[0]
            costs[ranks] = full / none
            self.results.update(full_shard_over_no_shard=costs, copied_bytes=summary["copied_bytes"])
            self.save()

    def run(self):
        several = [size for size in self.sizes if size[2] > 1]
        first_turns = [(f"{model}, turn 1", self.turn, model, batch) for model, batch, _ in several]
        sharding = [("full_shard against no_shard", self.sharded, *self.sizes[0][:2])]
        other_turns = [(f"{model}, turn {turn}", self.turn, model, batch)
                       for turn in range(2, max(turns for _, _, turns in self.sizes) + 1)
                       for model, batch, turns in several if turn <= turns]
        single_turns = [(model, self.turn, model, batch)
                        for model, batch, turns in self.sizes if turns == 1]
        missing = []
        for what, measure, model, batch in first_turns + sharding + other_turns + single_turns:
            try:
                measure(model, batch)
                print(f"{time.monotonic() - self.begin:6.1f} s: {what}", flush=True)
            except NotMeasured as reason:
                missing.append(f"{what}: {reason}")
                print(f"FAILED {missing[-1]}", flush=True)
        self.results.update(complete=not missing, missing=missing)
        self.save()
        self.print_table()
        return bool(missing)

    def print_table(self):
        print("\n| model | batch | Tessera ms | tokens/s | MFU of 989 T | MFU of matmul | "
              "PyTorch ms | ratio | turns |\n|---|---|---|---|---|---|---|---|---|")
        for model, size in self.results["sizes"].items():
            if not size["tessera_seconds"]:
                continue
            peer = f"{median(size['torch_seconds']) * 1e3:.1f} | {size['ratio']:.2f}" \
                if size["torch_seconds"] else "- | -"
            print(f"| {model} | {size['micro_batch']} x {self.args.sequence_length} | "
                  f"{median(size['tessera_seconds']) * 1e3:.1f} | {size['tokens_per_second']:,.0f} | "
                  f"{size['mfu_of_989']:.1%} | {size['mfu_of_matmul']:.1%} | {peer} | "
                  f"{len(size['tessera_seconds'])} |")
        for ranks, cost in self.results.get("full_shard_over_no_shard", {}).items():
            print(f"\nfull_shard / no_shard, {ranks} rank(s) on one GPU: {cost:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--sizes",
                        default="gpt2-124m:16:3,gpt2-1558m:16:3,gpt2-350m:16:1,gpt2-774m:16:1")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--tessera-flags", default="", help="for all its runs")
    parser.add_argument("--torch-flags", default="", help="of torch_gpu_step.py")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    comparison = Comparison(args)
    try:
        failed = comparison.run()
    finally:
        if comparison.torch:
            comparison.torch.process.kill()
    sys.exit(failed)


if __name__ == "__main__":
    main()
