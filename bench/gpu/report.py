#!/usr/bin/env python3
"""Writes what verify.sh knows so far: verify.json, verify.md and logs.txt.

    report.py --work DIR --out DIR --command "..." [--revision-file FILE]

--work holds steps/NAME.json and NAME.log of each step that has ended, --out the measurements
(kernels.json, attention.json, compare_torch.json). Judges each goal by them; what was not measured is
not passed. Prints verify.md. Exits with 1 if a step failed or did not come to run, with 3 if only goals
were missed.
"""

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SOURCES = ["CMakeLists.txt", "bench", "collectives", "kernels", "model", "runtime", "tests", "third_party"]
SIZES = ["gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m"]
# The MFU that llm.c's design reaches: 61 % on an A100 with the small model, 48 % on H100s with the
# large one.
LLM_C = {"gpt2-124m": 0.61, "gpt2-1558m": 0.48}


def read(path, default):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return default


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY).stdout.strip()
    except OSError:
        return ""


def sources_sha256():
    """Of all source files' names and contents: what was measured, where there is no revision."""
    digest = hashlib.sha256()
    for source in SOURCES:
        paths = [os.path.join(REPOSITORY, source)]
        for folder, folders, files in os.walk(paths[0]):
            folders[:] = sorted(name for name in folders if name not in ("__pycache__", "results"))
            paths += [os.path.join(folder, name) for name in sorted(files)]
        for path in paths:
            if os.path.isfile(path):
                digest.update(os.path.relpath(path, REPOSITORY).encode() + b"\0")
                digest.update(open(path, "rb").read())
    return digest.hexdigest()


def revision(carried):
    known = output("git", "describe", "--always", "--dirty", "--abbrev=40")
    if not known and carried and os.path.exists(carried):
        known = open(carried).read().strip()
    return known


class Goals:
    """Rows of goal, wanted, measured, verdict."""

    def __init__(self):
        self.rows = []

    def judge(self, goal, measured, at_least=None, at_most=None):
        if measured is None:
            passed = None
        else:
            passed = measured >= at_least if at_least is not None else measured <= at_most
        wanted = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}"
        self.rows.append({"goal": goal, "wanted": wanted, "measured": measured, "passed": passed})

    def by_kernels(self, kernels):
        of_copy = {row["name"]: row["of_copy"] for row in kernels if "of_copy" in row}
        for name in [name for name in of_copy if name != "copy"] or ["any memory-bound kernel"]:
            self.judge(f"{name}: part of the copy's bandwidth", of_copy.get(name),
                       at_least=0.92 if name == "adamw" else 0.9)

    def by_attention(self, attention):
        seconds = attention.get("seconds", {})

        def speed(backend, *passes):
            """How fast, beside PyTorch's."""
            try:
                return sum(seconds[f"attention_{p}_torch"] for p in passes) / sum(
                    seconds[f"attention_{p}_{backend}"] for p in passes)
            except KeyError:
                return None

        self.judge("cuDNN attention forward: speed of SDPA", speed("cudnn", "forward"), at_least=0.97)
        fastest = None
        if "attention_backward_cudnn_any_order" in seconds and "attention_backward_torch" in seconds:
            fastest = (seconds["attention_backward_torch"] /
                       seconds["attention_backward_cudnn_any_order"])
        self.judge("cuDNN attention backward, in any order: speed of SDPA", fastest, at_least=0.97)
        self.judge("own attention, both passes: speed of SDPA", speed("own", "forward", "backward"),
                   at_least=0.5)

    def by_training(self, training):
        for name in SIZES:
            size = training.get("sizes", {}).get(name, {})
            self.judge(f"{name}: speed of PyTorch, compiled", size.get("ratio"), at_least=1.1)
            mfu = size.get("mfu_of_989")
            if name in LLM_C:
                self.judge(f"{name}: MFU of 989 TFLOP/s, 1.05 times llm.c's", mfu,
                           at_least=round(1.05 * LLM_C[name], 3))
        self.judge("gpt2-1558m: MFU of 989 TFLOP/s",
                   training.get("sizes", {}).get("gpt2-1558m", {}).get("mfu_of_989"), at_least=0.6)
        costs = training.get("full_shard_over_no_shard", {})
        self.judge("full_shard with one rank: time of no_shard", costs.get("1"), at_most=1.02)
        self.judge("bytes copied in and out around collectives", training.get("copied_bytes"), at_most=0)


def markdown(report):
    lines = [f"{report['gpu']}; {report['date']}; {report['revision'] or 'no revision'}", "",
             "| step | verdict | seconds |", "|---|---|---|"]
    lines += [f"| {step['name']} | {step['verdict']} | {step['seconds']} |" for step in report["steps"]]
    lines += ["", "| goal | wanted | measured | |", "|---|---|---|---|"]
    verdicts = {True: "pass", False: "MISSED", None: "not measured"}
    for row in report["goals"]:
        measured = "-" if row["measured"] is None else f"{row['measured']:.3f}".rstrip("0").rstrip(".")
        lines.append(f"| {row['goal']} | {row['wanted']} | {measured} | {verdicts[row['passed']]} |")
    return "\n".join(lines) + "\n"


def write(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--revision-file")
    args = parser.parse_args()

    folder = os.path.join(args.work, "steps")
    steps = [read(os.path.join(folder, name), None) for name in os.listdir(folder)
             if name.endswith(".json")]
    steps = sorted((step for step in steps if step), key=lambda step: step["order"])
    goals = Goals()
    goals.by_training(read(os.path.join(args.out, "compare_torch.json"), {}))
    goals.by_attention(read(os.path.join(args.out, "attention.json"), {}))
    goals.by_kernels(read(os.path.join(args.out, "kernels.json"), []))
    report = {
        "date": datetime.date.today().isoformat(),
        "revision": revision(args.revision_file),
        "sources_sha256": sources_sha256(),
        "gpu": output("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                      "--format=csv,noheader") or "no GPU",
        "command": args.command,
        "steps": steps,
        "goals": goals.rows,
    }
    write(os.path.join(args.out, "verify.json"), json.dumps(report, indent=2) + "\n")
    text = markdown(report)
    logs = ""
    for step in steps:
        path = os.path.join(args.work, step["name"] + ".log")
        log = open(path, errors="replace").read()[-200000:] if os.path.exists(path) else ""
        logs += f"==== {step['name']}: {step['verdict']}\n{log}\n"
        if step["name"] in ("kernel_speed", "attention_speed", "compare_torch") and "\n|" in log:
            text += f"\n{step['name']}\n\n" + "\n".join(
                line for line in log.splitlines() if line.startswith("|") or "no_shard, " in line) + "\n"
    write(os.path.join(args.out, "verify.md"), text)
    write(os.path.join(args.out, "logs.txt"), logs)
    print(text, end="")
    if any(step["verdict"].startswith("FAILED") for step in steps):
        sys.exit(1)
    sys.exit(3 if any(row["passed"] is not True for row in goals.rows) else 0)


if __name__ == "__main__":
    main()
