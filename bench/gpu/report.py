#!/usr/bin/env python3
"""Writes what verify.sh knows so far: verify.json, verify.md, logs.txt and the measurements.

    report.py --work DIR --out DIR --command "..." --steps "NAME NAME..." [--revision-file FILE]
        [--begin fresh|continue] [--add NAME VERDICT SECONDS]

--work holds steps/NAME.json and NAME.log of each step that has ended, and measured/ what they measured
(kernels.json, attention.json, compare_torch.json), which is copied to --out. Judges each goal by that;
what was not measured is not passed. Prints verify.md. Exits with 1 if a step failed, with 3 if none did
but goals were missed or steps not run.

--begin   forgets earlier steps and measurements; with `continue`, only if they are of other sources
--add     says first how a step ended
"""

import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SOURCES = ["CMakeLists.txt", "bench", "collectives", "kernels", "model", "runtime", "tests", "third_party"]
SIZES = ["gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m"]
# The MFU that llm.c's design reaches: 61 % on an A100 with the small model, 48 % on H100s with the
# large one.
LLM_C = {"gpt2-124m": 0.61, "gpt2-1558m": 0.48}


MEASUREMENTS = ["kernels.json", "attention.json", "compare_torch.json"]


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
        rows = [row for row in kernels if "of_copy" in row and row["name"] != "copy"]
        # Between two launches of an operation memory is idle: those of several are rows apart.
        for row in sorted(rows, key=lambda row: row["launches"] > 1) or [{}]:
            name, launches = row.get("name", "any memory-bound kernel"), row.get("launches", 1)
            if launches > 1:
                name += f", {launches:g} launches"
            self.judge(f"{name}: part of the copy's bandwidth", row.get("of_copy"),
                       at_least=0.92 if row.get("name") == "adamw" else 0.9)

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


def copy_measurements(work, out):
    """To --out, but for those of an earlier call there, which are none of this report."""
    measured = {}
    for name in MEASUREMENTS:
        content = read(os.path.join(work, "measured", name), None)
        if content is not None:
            measured[name] = content
            write(os.path.join(out, name), json.dumps(content, indent=2) + "\n")
        elif os.path.exists(os.path.join(out, name)):
            os.remove(os.path.join(out, name))
    return measured


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


def begin(work, keep):
    """Empties what is known, unless it is to be kept and of these sources."""
    keep = keep and read(os.path.join(work, "sources.json"), None) == sources_sha256()
    for folder in ("steps", "measured"):
        path = os.path.join(work, folder)
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, exist_ok=True)
    write(os.path.join(work, "sources.json"), json.dumps(sources_sha256()))


def step(work, name):
    return read(os.path.join(work, "steps", name + ".json"),
                {"name": name, "verdict": "not run", "seconds": 0})


def write(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--steps", required=True)
    parser.add_argument("--revision-file")
    parser.add_argument("--begin", choices=["fresh", "continue"])
    parser.add_argument("--add", nargs=3, metavar=("NAME", "VERDICT", "SECONDS"))
    args = parser.parse_args()

    if args.begin:
        begin(args.work, args.begin == "continue")
    if args.add:
        name, verdict, seconds = args.add
        write(os.path.join(args.work, "steps", name + ".json"),
              json.dumps({"name": name, "verdict": verdict, "seconds": int(seconds)}))
    steps = [step(args.work, name) for name in args.steps.split()]
    measured = copy_measurements(args.work, args.out)
    goals = Goals()
    goals.by_training(measured.get("compare_torch.json", {}))
    goals.by_attention(measured.get("attention.json", {}))
    goals.by_kernels(measured.get("kernels.json", []))
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
    for each in steps:
        name, path = each["name"], os.path.join(args.work, each["name"] + ".log")
        log = ""
        if each["verdict"] != "not run" and os.path.exists(path):
            log = open(path, errors="replace").read()[-200000:]
        logs += f"==== {name}: {each['verdict']}\n{log}\n"
        if name in ("kernel_speed", "attention_speed", "compare_torch") and "\n|" in log:
            text += f"\n{name}\n\n" + "\n".join(
                line for line in log.splitlines() if line.startswith("|") or "no_shard, " in line) + "\n"
    write(os.path.join(args.out, "verify.md"), text)
    write(os.path.join(args.out, "logs.txt"), logs)
    print(text, end="")
    if any(each["verdict"].startswith("FAILED") for each in steps):
        sys.exit(1)
    complete = all(each["verdict"] != "not run" for each in steps)
    sys.exit(0 if complete and all(row["passed"] is True for row in goals.rows) else 3)


if __name__ == "__main__":
    main()
