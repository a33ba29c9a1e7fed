#!/usr/bin/env python3
"""Times training steps of GPT-2 on one GPU, with the GPU's sustained rates, clocks and power beside them.

    train_speed.py --program build/bin/tessera --step-kernels build/bin/step_kernels --tokens FILE.bin
        --json OUT [--bench build/bin/gpu_kernels_bench] [--seconds 300] [--gemm-table FILE]
        [--runs gpt2-1558m:8,gpt2-1558m:8:any-order,gpt2-1558m:8:few-blocks] [--sharding gpt2-124m:16]
        [--offload llama3.2-3b:4,llama3.1-8b:2] [--fine-tune]

A run is MODEL:MICRO-BATCH, with ":any-order" for --deterministic-attention false or ":few-blocks" for an
optimizer of 64 thread blocks beside the next forward pass, the most important first. Sequences of 1024, bf16, AdamW. With --bench, what lasts 3 s is measured first: matrix products of random
numbers and of zeros, copies, and an idle GPU; from joules follow those of a FLOP and of a byte. With --sharding, last, full_shard against no_shard with one rank; with --offload, the
optimizer's state in the host's memory against a step whose state is on the GPU, where that fits, all
blocks recomputed. With --fine-tune, Llama models whole, with LoRA over bf16 and nf4, and on packed
samples. The JSON file is rewritten after each measurement. Exits with 1 if something was not measured,
unless for want of memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time

from gpu_run import PEAK, NotMeasured, Samples, flops_per_token, train, write_json


# In the program's words: an allocation that failed, and a plan that is larger than what is free.
NO_MEMORY = ("memory", "that the GPUs have free")

# By their names in --runs: names in the report, and flags. Attention in any order is cuDNN's, or there is no
# run; the default says in a note what it is.
VARIANTS = {"": ("default", []),
            "any-order": ("any order", ["--attention", "cudnn", "--deterministic-attention", "false"]),
            "few-blocks": ("default, optimizer of 64 blocks", ["--optimizer-blocks", "64"])}


def sustained(bench):
    """Rates of 3 s each, and what the GPU did in the meantime."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file, Samples() as samples:
        try:
            subprocess.run([bench, "--sustained", "3", "--json", file.name], check=True,
                           stdout=subprocess.DEVNULL)
        except subprocess.CalledProcessError as error:
            raise NotMeasured(f"gpu_kernels_bench --sustained: {error}") from error
        rates = {row["name"]: row for row in json.load(file)}
    for row in rates.values():
        row["gpu"] = samples.between(row["begin"], row["end"])
        joules = samples.joules(row["begin"], row["end"])
        row["watts"] = joules and joules / (row["end"] - row["begin"])
    idle = rates.get("idle", {}).get("watts")
    for name, rate in (("matmul", "flops_per_second"), ("copy", "bytes_per_second")):
        row = rates.get(name, {})
        if idle and row.get("watts"):
            row["joules_each"] = (row["watts"] - idle) / row[rate]  # of a FLOP, of a byte
    return rates


def host_optimizer(program, seconds):
    """Bytes per second of AdamW over state in the host's memory, by all cores, and the most that this memory gave."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        try:
            subprocess.run([program, "bench", "kernels", "--device", "cpu", "--json", file.name, "--filter",
                            "optimizer_step/adamw/parameter:bf16/"], check=True, capture_output=True, timeout=seconds)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise NotMeasured(f"AdamW on the host: {error}") from error
        row = json.load(open(file.name))["benchmarks"][0]
    return {"bytes_per_second": row["GB/s"] * 1e9, "limit_bytes_per_second": row["limit"] * 1e9}


class Runs:
    def __init__(self, args):
        self.args, self.begin = args, time.monotonic()
        self.results = {"runs": [], "sustained": {}, "offload": [], "fine_tune": [], "missing": []}
        self.flops, self.failed = {}, False
        self.flags = ["--gemm-table", args.gemm_table] if args.gemm_table else []

    def seconds_left(self):
        left = self.args.seconds - (time.monotonic() - self.begin)
        if left <= 1:
            raise NotMeasured(f"no time left of {self.args.seconds:.0f} s")
        return left

    def attempt(self, what, measure, *args):
        try:
            measure(*args)
        except NotMeasured as reason:
            text = f"{what}: {reason}"
            self.failed = self.failed or not any(words in str(reason) for words in NO_MEMORY)
            self.results["missing"].append(text)
            print(f"not measured: {text}", flush=True)
        else:
            print(f"{time.monotonic() - self.begin:6.1f} s: {what}", flush=True)
        write_json(self.args.json, self.results)

    def sustained(self):
        self.results["sustained"] = sustained(self.args.bench)

    def run(self, model, micro_batch, variant):
        name, flags = VARIANTS[variant]
        row = train(self.args.program, self.args.tokens, model, micro_batch, self.flags + flags,
                    self.seconds_left())
        if not row["cuda_graph"]:
            raise NotMeasured("the steps were not replayed as a CUDA graph")
        if model not in self.flops:
            self.flops[model] = flops_per_token(self.args.step_kernels, model)
        tokens_per_second = row["tokens"] / row["seconds"]
        flops = self.flops[model] * tokens_per_second
        self.results["runs"].append(
            {"model": model, "micro_batch": micro_batch,
             "attention": name, **row,
             "tokens_per_second": tokens_per_second, "mfu_of_989": flops / PEAK})

    def sharding(self, model, micro_batch):
        costs = {}
        for strategy in ("no_shard", "full_shard"):
            costs[strategy] = train(self.args.program, self.args.tokens, model, micro_batch,
                                    self.flags + ["--strategy", strategy], self.seconds_left())
        self.results["full_shard_over_no_shard"] = (costs["full_shard"]["seconds"] /
                                                    costs["no_shard"]["seconds"])
        self.results["copied_bytes"] = costs["full_shard"]["copied_bytes"]

    def host_optimizer(self):
        self.results["host_optimizer"] = host_optimizer(self.args.program, self.seconds_left())

    def offload(self, model, micro_batch):
        """Host memory: 12 bytes of state, 4 of gradients and 2 of parameters for each parameter."""
        flags = self.flags + ["--recompute", "full"]
        row = train(self.args.program, self.args.tokens, model, micro_batch,
                    flags + ["--offload-optimizer", "host"], self.seconds_left())
        row.update({"model": model, "micro_batch": micro_batch})
        if "host_optimizer" in self.results:
            # AdamW reads and writes 30 bytes of a parameter, of which the 2 of bf16 go to the GPU.
            moved = 15 * row["tier_copy_bytes"]["host_to_device"]
            row["host_update_seconds"] = moved / self.results["host_optimizer"]["bytes_per_second"]
        rates = self.results["sustained"]
        for key, copy in (("device_to_host", "copy to host"), ("host_to_device", "copy from host")):
            if copy in rates:
                busy = row["tier_copy_bytes"][key] / rates[copy]["bytes_per_second"]
                row[f"{key}_share_of_link"] = busy / row["seconds"]
        self.results["offload"].append(row)
        write_json(self.args.json, self.results)
        plain = train(self.args.program, self.args.tokens, model, micro_batch, flags, self.seconds_left())
        row["seconds_without"] = plain["seconds"]
        if "host_update_seconds" in row:
            row["tokens_to_hide_updates"] = row["tokens"] * row["host_update_seconds"] / plain["seconds"]

    def fine_tune(self, what, model, micro_batch, flags, sequence_length=1024):
        row = train(self.args.program, self.args.tokens, model, micro_batch, self.flags + flags,
                    self.seconds_left(), sequence_length)
        self.results["fine_tune"].append({"what": what, "model": model, "micro_batch": micro_batch,
                                          "sequence_length": sequence_length, **row})

    def fine_tunes(self):
        lora = ["--lora", "r=16,targets=all-linear"]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as documents:
            write_documents(documents)
            packed = ["--data", documents.name, "--packing", "true"]
            for what, model, micro_batch, *rest in (
                    ("whole", "llama3.2-1b", 8, []), ("LoRA", "llama3.2-1b", 8, lora),
                    ("LoRA over nf4", "llama3.2-1b", 8, lora + ["--base-format", "nf4"]),
                    ("whole, sequences", "llama3.2-1b", 4, [], 2048),
                    ("whole, packed", "llama3.2-1b", 4, packed, 2048),
                    ("LoRA over nf4", "llama3.1-8b", 1, lora + ["--base-format", "nf4"])):
                self.attempt(f"{model}:{micro_batch}, {what}", self.fine_tune, what, model, micro_batch, *rest)

    def print_table(self):
        for name, row in self.results["sustained"].items():
            rate = (f"{row['flops_per_second'] * 1e-12:.0f} TFLOP/s" if "flops_per_second" in row
                    else f"{row['bytes_per_second'] * 1e-9:.0f} GB/s" if "bytes_per_second" in row else "no work")
            energy = f", {row['joules_each'] * 1e12:.2f} pJ each" if row.get("joules_each") else ""
            print(f"sustained {name}: {rate}{energy}{state(row['gpu'])}")
        if self.results["runs"]:
            self.print_runs()
        for row in self.results["fine_tune"]:
            print(f"\n{row['model']}, micro-batch {row['micro_batch']} of {row['sequence_length']}, {row['what']}: "
                  f"{row['seconds'] * 1e3:.1f} ms, {millijoules(row)} mJ per token, peak "
                  f"{row['peak_bytes'] / 2**30:.1f} GiB{state(row['gpu'])}")
        if "host_optimizer" in self.results:
            host = self.results["host_optimizer"]
            print(f"\nAdamW on the host: {host['bytes_per_second'] * 1e-9:.0f} GB/s, "
                  f"{host['bytes_per_second'] / host['limit_bytes_per_second']:.0%} of its memory's")
        for row in self.results["offload"]:
            shares = ", ".join(f"{row[key]:.0%} of the link's rate {words}" for key, words in (
                ("device_to_host_share_of_link", "to the host"),
                ("host_to_device_share_of_link", "from it")) if key in row)
            without = f", {row['seconds_without'] * 1e3:.1f} without" if "seconds_without" in row else ""
            print(f"\n{row['model']}, micro-batch {row['micro_batch']}, optimizer on the host: "
                  f"{row['seconds'] * 1e3:.1f} ms{without}; copies take {shares or 'unknown shares'}")
            if "tokens_to_hide_updates" in row:
                print(f"updates on the host take {row['host_update_seconds'] * 1e3:.0f} ms, as long as the GPU computes "
                      f"for {row['tokens_to_hide_updates']:,.0f} tokens a step; this step has {row['tokens']:,}")
        if "full_shard_over_no_shard" in self.results:
            print(f"\nfull_shard / no_shard, one rank: {self.results['full_shard_over_no_shard']:.3f}")

    def print_runs(self):
        print("\n| model | batch | attention | ms | tokens/s | MFU of 989 T | mJ per token | GPU |\n"
              "|---|---|---|---|---|---|---|---|")
        for row in self.results["runs"]:
            print(f"| {row['model']} | {row['micro_batch']} | {row['attention']} | "
                  f"{row['seconds'] * 1e3:.1f} | {row['tokens_per_second']:,.0f} | "
                  f"{row['mfu_of_989']:.1%} | {millijoules(row)} |{state(row['gpu']).replace(',', '', 1)} |")


def millijoules(row):
    return f"{row['joules'] / row['tokens'] * 1e3:.1f}" if row.get("joules") else "-"


def write_documents(file):
    """2,000 documents of 200 to 1,000 bytes, which are tokens; half of each is a prompt."""
    for i in range(2000):
        text = f"{i} " * 500
        length = 200 + i * 7919 % 801
        file.write(json.dumps({"prompt": text[:length // 2], "completion": text[length // 2:length]}) + "\n")
    file.flush()


def state(gpu):
    if not gpu:
        return ""
    return (f", {gpu['sm_mhz']['median']:.0f} MHz (at least {gpu['sm_mhz']['lowest']:.0f}), "
            f"{gpu['watts']['median']:.0f} W, {gpu['celsius']['highest']:.0f} C")


def parse_run(text):
    model, micro_batch, variant, *rest = [*text.split(":"), ""]
    if variant not in VARIANTS or rest not in ([], [""]):
        raise argparse.ArgumentTypeError(
            f"a run is MODEL:BATCH or MODEL:BATCH:VARIANT with {' or '.join(filter(None, VARIANTS))}, not '{text}'")
    return model, int(micro_batch), variant


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--step-kernels", required=True)
    parser.add_argument("--bench")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--gemm-table")
    parser.add_argument("--runs", default="", help="MODEL:BATCH[:VARIANT],...")
    parser.add_argument("--sharding", help="MODEL:BATCH")
    parser.add_argument("--fine-tune", action="store_true")
    parser.add_argument("--offload", default="", help="MODEL:BATCH,...")
    args = parser.parse_args()
    runs = Runs(args)
    if args.bench:
        runs.attempt("sustained rates", runs.sustained)
    for text in filter(None, args.runs.split(",")):
        runs.attempt(text, runs.run, *parse_run(text))
    if args.offload:
        runs.attempt("AdamW on the host", runs.host_optimizer)
    for text in filter(None, args.offload.split(",")):
        runs.attempt(f"{text}, optimizer on the host", runs.offload, *parse_run(text)[:2])
    if args.fine_tune:
        runs.fine_tunes()
    if args.sharding:
        runs.attempt("full_shard against no_shard", runs.sharding, *parse_run(args.sharding)[:2])
    runs.print_table()
    sys.exit(runs.failed)


if __name__ == "__main__":
    main()
