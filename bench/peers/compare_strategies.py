#!/usr/bin/env python3
"""Tessera's strategies beside PyTorch DDP, FSDP2 and DeepSpeed: tokens/s and peak memory, in turns.

    python3 bench/peers/compare_strategies.py --program build/bin/tessera --python VENV/bin/python
        [--quick] [--precision fp32|bf16] [--rounds 3] [--only NAMES] [--json FILE]
    python3 bench/peers/compare_strategies.py --list

VENV is a virtual environment with torch and numpy, and deepspeed and ninja if it is to be compared.
Each round runs each of them once, in an order that is rotated from round to round. A run is a process
of its own with a time limit, which starts its ranks. All of them have:
  - the weights that Tessera exports before the first round, read from a Hugging Face folder
  - the same random tokens in the same batches
  - AdamW (1e-4, betas 0.9 and 0.95, eps 1e-8, weight decay 0.1 of matrices), no clipping
  - in bf16 fp32 weights in the optimizer, and gradients added in fp32 (torch_step.py names each mode)
The losses of the first steps must agree with Tessera's, or the exit code is 1. PyTorch is tuned as
compare_torch.py does it. On a CPU its ranks are processes over gloo, Tessera's are threads of one
process; on GPUs (as many as ranks) both use NCCL.

Ratios are Tessera's strategy over the peer in the same round, their median and quartiles: above 1
Tessera is faster, or needs more memory. Tokens/s are of a run's median step. Memory is that of a rank:
on a CPU the peak of resident memory less what is resident before the model is made (of Tessera the
process's, over its ranks), on a GPU what is allocated there. A peer that does not run is listed with
the reason. DeepSpeed compiles an operator in its first run, the compiled variants their kernels.
"""

import argparse
import array
import json
import os
import platform
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import compare_torch
from repeats import quartiles, show

STRATEGIES = ["no_shard", "zero1", "zero2", "full_shard"]
WARMUP_STEPS = 2  # torch_step.py's
CHECKED_STEPS = 3
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-4}  # of losses, relative


@dataclass(frozen=True)
class Peer:
    beside: str  # Tessera's strategy that shards the same states
    flags: tuple  # of torch_step.py
    what: str


PEERS = {
    "ddp": Peer("no_shard", ("--parallel", "ddp"), "DistributedDataParallel"),
    "ddp-compile": Peer("no_shard", ("--parallel", "ddp", "--compile"),
                        "DDP, torch.compile of blocks and loss"),
    "deepspeed-zero1": Peer("zero1", ("--parallel", "zero1"), "DeepSpeed ZeRO-1"),
    "deepspeed-zero2": Peer("zero2", ("--parallel", "zero2"), "DeepSpeed ZeRO-2"),
    "fsdp2": Peer("full_shard", ("--parallel", "fsdp"), "fully_shard of each block and the root"),
    "fsdp2-compile": Peer("full_shard", ("--parallel", "fsdp", "--compile"),
                          "FSDP2, torch.compile of blocks and loss"),
    "deepspeed-zero3": Peer("full_shard", ("--parallel", "zero3"), "DeepSpeed ZeRO-3"),
}


class Unavailable(Exception):
    pass


def reason_of(stderr):
    """The last line that names an error, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b|tessera: error", line)]
    return (errors or lines or ["no message"])[-1][:200]


def peak_resident(pid):
    """VmHWM in bytes; 0 where the process is at its end."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def run_apart(command, limit, env=None):
    """Runs a command with a time limit; its output and the peak of its resident memory."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=err, start_new_session=True)
        end, peak = time.monotonic() + limit, 0
        try:
            while process.poll() is None and time.monotonic() < end:
                peak = max(peak, peak_resident(process.pid))
                time.sleep(0.02)
            timed_out = process.poll() is None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the ranks that it has started
                process.wait()
        out.seek(0), err.seek(0)
        if timed_out:
            raise Unavailable(f"no end within {limit:.0f} s (--limit)")
        if process.returncode != 0:
            raise Unavailable(reason_of(err.read()))
        return out.read(), peak


class Comparison:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.env, self.tuning = compare_torch.environment(folder, not args.no_mkl_override)
        self.weights = os.path.join(folder, "weights")
        self.tokens = os.path.join(folder, "tokens.bin")
        self.tokens_per_step = args.ranks * args.micro_batch * args.sequence_length
        self.versions, self.runs, self.unavailable = {}, {}, {}
        self.idle = run_apart([args.program, "--version"], args.limit)[1]
        self.write_tokens()
        self.export_weights()

    def write_tokens(self):
        count = self.tokens_per_step * (WARMUP_STEPS + self.args.steps) + 1
        numbers = random.Random(0)
        with open(self.tokens, "wb") as file:
            array.array("H", (numbers.randrange(self.args.vocab_size) for _ in range(count))).tofile(file)

    def train(self, *flags):
        """Flags of `tessera train` that differ from run to run, behind those that do not."""
        log = os.path.join(self.folder, "log.jsonl")
        args = self.args
        command = [args.program, "train", "--no-default-config", "--device", args.device, "--data",
                   self.tokens, "--data-kind", "tokens", "--shuffle", "false", "--sequence-length",
                   str(args.sequence_length), "--micro-batch", str(args.micro_batch),
                   "--learning-rate-schedule", "constant", "--warmup-steps", "0", "--clip-norm", "0",
                   "--weight-decay", "0.1", "--sample-tokens", "0", "--parameters-hash", "false",
                   "--quiet", "--log", log, "--overwrite", *flags]
        peak = run_apart(command, args.limit)[1]
        with open(log, encoding="utf-8") as file:
            return [json.loads(line) for line in file], peak

    def export_weights(self):
        """A step of learning rate 0 leaves the initial weights as they are."""
        args = self.args
        layers = ["--layers", str(args.layers)] if args.layers else []
        lines, _ = self.train("--model", args.model, *layers, "--vocab-size", str(args.vocab_size),
                              "--steps", "1", "--learning-rate", "0", "--export", self.weights)
        self.model = {name: lines[0][name] for name in
                      ("parameters", "layers", "heads", "width", "vocab_size", "context_length")}
        self.versions["tessera"] = lines[0]["version"]

    def run_strategy(self, strategy):
        args = self.args
        lines, peak = self.train(
            "--init", self.weights, "--strategy", strategy, "--ranks", str(args.ranks),
            "--threads-per-rank", str(args.threads), "--precision", args.precision, "--steps",
            str(WARMUP_STEPS + args.steps), "--learning-rate", "1e-4")
        steps = [line for line in lines if line["kind"] == "step"]
        summary = next(line for line in lines if line["kind"] == "summary")
        memory = (peak - self.idle) / args.ranks
        if args.device == "cuda":
            memory = summary["peak_bytes"]["measured"]["total"]
        return {"step_seconds": [step["seconds"] for step in steps[WARMUP_STEPS:]],
                "losses": [step["loss"] for step in steps], "peak_bytes": memory}

    def run_peer(self, peer):
        args = self.args
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_step.py")
        output, _ = run_apart(
            [args.python, script, "--init", self.weights, "--tokens", self.tokens, "--precision",
             args.precision, "--micro-batch", str(args.micro_batch), "--sequence-length",
             str(args.sequence_length), "--ranks", str(args.ranks), "--threads", str(args.threads),
             "--device", args.device, "--rounds", str(args.steps), *peer.flags], args.limit, self.env)
        row = json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))
        self.versions.update({name: row[name] for name in ("torch", "deepspeed", "gpu") if name in row})
        return {name: row[name] for name in ("step_seconds", "losses", "peak_bytes", "adamw")}

    def run(self, name):
        if name in self.unavailable:
            return
        begin = time.monotonic()
        try:
            row = self.run_peer(PEERS[name]) if name in PEERS else self.run_strategy(name)
        except Unavailable as reason:
            if name not in PEERS:
                raise
            self.unavailable[name] = str(reason)
            self.runs.pop(name, None)  # an incomplete row is none
        else:
            row["tokens_per_second"] = self.tokens_per_step / statistics.median(row["step_seconds"])
            self.runs.setdefault(name, []).append(row)
        print(f"  {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def ratios(self, name, quantity):
        """Of the strategy beside a peer over the peer, round by round."""
        return [own[quantity] / other[quantity]
                for own, other in zip(self.runs[PEERS[name].beside], self.runs[name])]

    def loss_deviation(self, name):
        """The largest relative one from Tessera's first run, over the first steps."""
        reference = next(iter(self.runs[s] for s in STRATEGIES if s in self.runs))[0]["losses"]
        return max(abs(loss - own) / own for row in self.runs[name]
                   for loss, own in zip(row["losses"][:CHECKED_STEPS], reference))


def print_table(comparison):
    """80 columns."""
    print(f"{'':15} {'beside':10} {'tokens/s':>8} {'ratio':<17} {'MiB':>6} ratio")
    for name in [*STRATEGIES, *PEERS]:
        if name not in comparison.runs:
            continue
        speed, memory = (statistics.median(row[key] for row in comparison.runs[name])
                         for key in ("tokens_per_second", "peak_bytes"))
        beside, ratios = "", ["", ""]
        if name in PEERS:
            beside = PEERS[name].beside
            ratios = [show(comparison.ratios(name, key)) for key in ("tokens_per_second", "peak_bytes")]
        print(f"{name:15} {beside:10} {speed:8.1f} {ratios[0]:<17} {memory / 2**20:6.0f} "
              f"{ratios[1]}".rstrip())
    for name, reason in comparison.unavailable.items():
        print(f"{name}: unavailable: {reason}")


def check_losses(comparison, tolerance):
    """Prints how far losses are from Tessera's; the names of those too far."""
    deviations = {name: comparison.loss_deviation(name) for name in comparison.runs}
    wrong = [name for name, deviation in deviations.items() if not deviation <= tolerance]
    print(f"losses of the first {CHECKED_STEPS} steps: within {max(deviations.values()):.1e} of "
          f"{next(s for s in STRATEGIES if s in deviations)}'s (tolerance {tolerance:.0e})")
    for name in wrong:
        print(f"{name}: losses differ by {deviations[name]:.1e}: not the same training")
    return deviations, wrong


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = re.findall(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    return {"processor": names[0] if names else platform.machine(),
            "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def write_json(path, args, comparison, deviations):
    peers = {name: {"beside": PEERS[name].beside,
                    **{f"{key}_ratio": dict(zip(("first_quartile", "median", "third_quartile"),
                                                quartiles(comparison.ratios(name, key))))
                       for key in ("tokens_per_second", "peak_bytes")}}
             for name in comparison.runs if name in PEERS}
    settings = {name: getattr(args, name) for name in
                ("precision", "ranks", "threads", "micro_batch", "sequence_length", "steps", "rounds",
                 "device")}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"machine": machine(), "versions": comparison.versions, "tuning": comparison.tuning,
                   "model": comparison.model, **settings, "tokens_per_step": comparison.tokens_per_step,
                   "peers": peers, "unavailable": comparison.unavailable,
                   "loss_deviations": deviations, "runs": comparison.runs}, file, indent=2)


def gpu_count():
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def chosen(only, quick):
    """The runs of a round: the named ones, and strategies that they are compared with."""
    if only is None:
        peers = [name for name, peer in PEERS.items() if not (quick and "--compile" in peer.flags)]
        return [*STRATEGIES, *peers]
    names = [name for name in only.split(",") if name]
    unknown = [name for name in names if name not in STRATEGIES and name not in PEERS]
    if unknown or not names:
        sys.exit(f"compare_strategies.py: --only {only}: no such peer; --list lists them")
    names += [PEERS[name].beside for name in names if name in PEERS]
    return [name for name in [*STRATEGIES, *PEERS] if name in names]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="list what can be compared")
    parser.add_argument("--program", help="tessera")
    parser.add_argument("--python", help="of the environment with torch")
    parser.add_argument("--only", metavar="NAMES", help="a comma between them")
    parser.add_argument("--quick", action="store_true", 
                        help="a tiny model, two rounds, no torch.compile unless --only names it")
    parser.add_argument("--model", help="a preset of tessera train [gpt2-124m; quick: gpt2-tiny]")
    parser.add_argument("--layers", type=int, help="[4; the model's with --model]")
    parser.add_argument("--vocab-size", type=int, default=16384, help="[16384]; at most 65536")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--sequence-length", type=int, help="[256; quick: 64]")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="per rank")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=5, help="timed ones in a run, after two others")
    parser.add_argument("--rounds", type=int, help="[3; quick: 2]")
    parser.add_argument("--limit", type=float, default=180, help="seconds of a run")
    parser.add_argument("--tolerance", type=float, help="of losses [fp32: 1e-5; bf16: 2e-4]")
    parser.add_argument("--no-mkl-override", action="store_true", help="leave MKL as it ships")
    parser.add_argument("--json", metavar="FILE", help="write everything measured here")
    args = parser.parse_args()
    if not args.list and not (args.program and args.python):
        parser.error("--program and --python are needed")
    if args.ranks < 2 or args.steps < 1 or (args.rounds is not None and args.rounds < 1):
        parser.error("at least 2 ranks, a step and a round are needed")
    if not 2 <= args.vocab_size <= 65536:
        parser.error("--vocab-size is 2 to 65536: token ids have 16 bits")
    if args.layers is None and args.model is None and not args.quick:
        args.layers = 4
    args.model = args.model or ("gpt2-tiny" if args.quick else "gpt2-124m")
    args.sequence_length = args.sequence_length or (64 if args.quick else 256)
    args.rounds = args.rounds or (2 if args.quick else 3)
    args.tolerance = args.tolerance or TOLERANCE[args.precision]
    return args


def print_list():
    for name in STRATEGIES:
        print(f"{name:15} Tessera")
    for name, peer in PEERS.items():
        print(f"{name:15} {peer.what}, beside {peer.beside}")


def main():
    args = arguments()
    if args.list:
        return print_list()
    names = chosen(args.only, args.quick)
    if args.device == "auto":
        args.device = "cuda" if gpu_count() >= args.ranks else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        try:
            comparison = Comparison(args, folder)
            model = comparison.model
            print(f"{model['parameters'] / 1e6:.1f} M parameters ({model['layers']} layers of "
                  f"{model['width']}, {model['vocab_size']} tokens), {args.precision}, {args.device}\n"
                  f"{args.ranks} ranks x {args.threads} threads, batch {args.micro_batch} x "
                  f"{args.sequence_length} each\nPyTorch: {comparison.tuning}", flush=True)
            for turn in range(args.rounds):
                print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
                first = turn * len(names) // args.rounds
                for name in names[first:] + names[:first]:
                    comparison.run(name)
        except Unavailable as reason:
            sys.exit(f"compare_strategies.py: {shlex.quote(args.program)} does not run: {reason}")
    print_table(comparison)
    deviations, wrong = check_losses(comparison, args.tolerance)
    if args.json:
        write_json(args.json, args, comparison, deviations)
    return 1 if wrong else None


if __name__ == "__main__":
    sys.exit(main())
