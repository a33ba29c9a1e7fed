#!/usr/bin/env python3
"""Trains small models on one GPU and on CPU ranks of the same machine, and compares their losses.

    families.py --program build/bin/tessera --text FILE --json OUT [--jobs 5] [--devices cpu,cuda] [--seconds 170]

Every family, adapter, format of a frozen base, tier, and what else changes a step, each for eight steps from
weights that 60 steps on the CPU have made; greedy texts and evaluations; checkpoints that go from the CPU to the
GPU and back. All tiers and recomputation must give the same bits on one device. Exits with 1 if a run failed or
its losses are further apart than its bound, with 3 if there was not time for all.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

from gpu_run import write_json

MODELS = ["llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny", "phi3-tiny", "gpt2-tiny", "gemma2-tiny",
          "gemma3-tiny"]
FP32_BOUND, SIXTEEN_BITS_BOUND, CODED_STATE_BOUND = 2e-5, 2e-2, 1e-3  # of losses, relative
SHARDED = ["--ranks", "2", "--strategy", "full_shard"]
SMALL = ["--no-default-config", "--sequence-length", "96", "--sample-tokens", "0", "--quiet", "--overwrite",
         "--threads-per-rank", "1"]


class OutOfTime(Exception):
    pass


class Machine:
    def __init__(self, args, folder):
        self.args, self.folder, self.end = args, folder, time.monotonic() + args.seconds

    def call(self, *words):
        """What a command of the program printed; throws with its complaint."""
        left = self.end - time.monotonic()
        try:
            if left <= 0:
                raise OutOfTime()
            done = subprocess.run([self.args.program, *words], capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired as error:
            raise OutOfTime() from error
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr[-600:]}")
        return done.stdout

    def train(self, device, *words):
        group = ["--group", "thread"] if device == "cuda" else []
        self.call("train", *SMALL, "--device", device, *group, *words)

    def losses(self, device, name, words):
        log = os.path.join(self.folder, f"{name}.{device}.jsonl".replace(" ", "_"))
        defaults = {"--data": self.args.text, "--micro-batch": "2", "--steps": "8"}
        missing = [word for flag, value in defaults.items() if flag not in words for word in (flag, value)]
        self.train(device, "--log", log, *words, *missing)
        with open(log) as file:
            lines = [json.loads(line) for line in file]
        summary = next(line for line in lines if line["kind"] == "summary")
        return {"losses": [line["loss"] for line in lines if line["kind"] == "step"],
                "parameters_sha256": summary.get("parameters_sha256"), "cuda_graph": summary.get("cuda_graph")}

    def base(self, model):
        folder = os.path.join(self.folder, model)
        self.train("cpu", "--model", model, "--layers", "3", "--export", folder, "--micro-batch", "8",
                   "--learning-rate", "3e-3", "--steps", "60", "--data", self.args.text)
        return folder


def write_pairs(path):
    with open(path, "w") as file:
        for i in range(40):
            row = {"prompt": f"Twice {i} is ", "completion": f"{2 * i}." + " so" * (i % 7)}
            file.write(json.dumps(row) + "\n")
    return path


def tiers(disk):
    """What must have one case's bits, by name."""
    host = {what: [f"--offload-{what}", "host"] for what in ("optimizer", "parameters", "gradients")}
    return {"all on the device": [], "recompute": ["--recompute", "full"], "zero2": ["--strategy", "zero2"],
            "optimizer on host": host["optimizer"], "parameters on host": host["parameters"],
            "optimizer and parameters on host": host["optimizer"] + host["parameters"],
            "gradients on host": host["optimizer"] + host["gradients"],
            "activations on host": ["--offload-activations", "host", "--recompute", "full"],
            "optimizer on disk": ["--offload-optimizer", "disk", "--offload-path", disk]}


def cases(bases, folder):
    """Each: name, flags, bound."""
    rows = []

    def add(name, words, precision="fp32", bound=None):
        bound = bound or (FP32_BOUND if precision == "fp32" else SIXTEEN_BITS_BOUND)
        strategy = [] if "--ranks" in words else ["--ranks", "2"]
        strategy += [] if "--strategy" in words else ["--strategy", "full_shard"]
        rows.append((name, [*words, *strategy, "--precision", precision], bound))

    llama, gpt2, qwen3 = (["--init", bases[name]] for name in ("llama-tiny", "gpt2-tiny", "qwen3-tiny"))
    for model, base in bases.items():
        for precision in ("fp32", "bf16"):
            add(f"{model} {precision}", ["--init", base], precision)
    lora = ["--lora", "r=4,targets=all-linear"]
    adapted = {"lora": llama + lora, "lora gpt2": gpt2 + lora,
               "ia3": llama + ["--ia3", "targets=k_proj,v_proj,down_proj,feedforward=down_proj"],
               "prompt": llama + ["--prompt-tuning", "tokens=8"],
               "qwen3 nf4": qwen3 + lora + ["--base-format", "nf4"]}
    for base_format in ("nf4", "nf4-double", "fp4", "int8"):
        adapted[base_format] = llama + lora + ["--base-format", base_format]
    for name, words in adapted.items():
        for precision in ("fp32", "bf16"):
            add(f"{name} {precision}", words, precision)
    for name, words in tiers(folder).items():
        add(name, llama + words)
    pairs = ["--data", write_pairs(os.path.join(folder, "pairs.jsonl"))]
    add("3 ranks accumulate", llama + ["--ranks", "3", "--micro-batch", "1", "--accumulate", "2"])
    add("hybrid of 4", llama + ["--ranks", "4", "--strategy", "hybrid_shard", "--replicas", "2"])
    add("fp16", llama, "fp16")
    add("adamw8bit", llama + ["--optimizer", "adamw8bit"], bound=CODED_STATE_BOUND)
    add("dropout", gpt2 + ["--dropout", "0.1"])
    add("pairs", llama + pairs)
    for precision in ("fp32", "bf16"):
        add(f"packed pairs {precision}", llama + pairs + ["--packing", "true"], precision)
    return rows


class Verdicts:
    def __init__(self, path):
        self.path, self.failed, self.left = path, 0, 0
        self.results = {"verdicts": {}, "runs": {}}
        self.lock = threading.Lock()

    def add(self, name, good, text):
        with self.lock:
            self.results["verdicts"][name] = text if good else f"FAILED: {text}"
            self.failed += not good
            print("ok" if good else "FAILED", f"{name}: {text}", flush=True)
            write_json(self.path, self.results)

    def compare(self, name, bound, row):
        with self.lock:
            self.results["runs"][name] = row
        runs = list(row.values())
        counts = {len(run["losses"]) for run in runs}
        if len(counts) != 1 or 0 in counts:
            return self.add(name, False, f"steps: {counts}")
        worst = max((abs(a - b) / abs(a) for a, b in zip(runs[0]["losses"], runs[-1]["losses"])), default=0)
        self.add(name, worst <= bound, f"losses {worst:.1e} apart, at most {bound:.0e}")

    def attempt(self, name, what):
        try:
            what()
        except OutOfTime:
            with self.lock:
                self.left += 1
            print(f"not run: {name}", flush=True)
        except RuntimeError as error:
            self.add(name, False, str(error))


def texts_and_losses(machine, verdicts, model, base):
    rows = []
    for device in machine.args.devices:
        text = machine.call("generate", "--no-default-config", "--init", base, "--device", device, "--prompt",
                            "Alice was", "--tokens", "24", "--temperature", "0")
        said = machine.call("evaluate", "--no-default-config", "--init", base, "--device", device, "--eval-data",
                            machine.args.text, "--eval-tokens", "512", "--sequence-length", "64", "--format", "json")
        rows.append((text, json.loads(said)["loss"]))
    (text, loss), (other_text, other_loss) = rows[0], rows[-1]
    near = abs(loss - other_loss) <= FP32_BOUND * loss
    verdicts.add(f"{model} greedy text and loss", text == other_text and near, f"{loss:.6f} and {other_loss:.6f}")


def checkpoint_crosses(machine, verdicts, base, first, second):
    saved = os.path.join(machine.folder, f"saved-{first}")
    words = ["--init", base, "--data", machine.args.text, "--micro-batch", "2"]
    machine.train(first, *words, *SHARDED, "--save", saved, "--steps", "8")
    machine.train(second, *words, "--ranks", "3", "--strategy", "zero1", "--resume", saved, "--steps", "12",
                  "--allow-other-data")
    verdicts.add(f"checkpoint from {first} to {second}", True, "resumed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--devices", default="cpu,cuda", type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=170)
    args = parser.parse_args()
    verdicts = Verdicts(args.json)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        machine = Machine(args, folder)
        bases = dict(zip(MODELS, pool.map(machine.base, MODELS)))

        def run(case):
            name, words, bound = case
            verdicts.attempt(name, lambda: verdicts.compare(
                name, bound, {device: machine.losses(device, name, words) for device in args.devices}))

        rows = cases(bases, folder)
        list(pool.map(run, rows))
        for device in args.devices:
            done = verdicts.results["runs"]
            runs = [done[name][device] for name in tiers("") if name in done]
            hashes = {run["parameters_sha256"] for run in runs}
            verdicts.add(f"bits of all tiers on {device}", len(hashes) == 1, f"{len(hashes)} of {len(runs)} runs")
        for model, base in bases.items():
            verdicts.attempt(model, lambda: texts_and_losses(machine, verdicts, model, base))
        if len(args.devices) == 2:
            for first, second in (args.devices, args.devices[::-1]):
                verdicts.attempt(f"checkpoint from {first}", lambda: checkpoint_crosses(
                    machine, verdicts, bases["llama-tiny"], first, second))
    print(f"{len(rows)} runs; {verdicts.failed} failed, {verdicts.left} not run")
    sys.exit(1 if verdicts.failed else 3 if verdicts.left else 0)


if __name__ == "__main__":
    main()
