#!/usr/bin/env python3
"""Writes what verify.sh knows so far, and predicts a training step.

    report.py --work DIR --out DIR --command "..." --steps "NAME NAME..." [--deps DIR]
        [--begin fresh|continue] [--add NAME VERDICT SECONDS]
    report.py --predict STEP_KERNELS [--gpu H200] [--measured FILE]

First form: --work holds steps/NAME.json and NAME.log of each step that has ended, measured/*.json that
they measured, and tests/*.xml of the suites that they ran. --out gets all of it in five files: verify.md
and verify.json (steps; each figure beside its prediction and its goal), measured.json, tests.xml and
logs.txt. Prints verify.md. Exits with 1 if a step failed, with 3 if none did but goals were missed or
steps not run.

--begin    forgets earlier results; with `continue`, only those of other sources or another GPU: what
           --out holds is taken up, so that a run may go on on another machine. Prints the names of
           the steps that are done.
--add      says first how a step ended

Second form: prints the predicted time of each kernel of a step, from the shapes that the program
STEP_KERNELS prints, or a file with them, and the share of the bandwidth that the table of SASS predicts
for each kernel; beside them, of a measured.json, what was measured.
"""

import argparse
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

import goals
import predict
from gpu_run import write_json
from sources import REPOSITORY, revision, sources_sha256

SASS = os.path.join(REPOSITORY, "kernels", "src", "cuda", "expected_sass.json")
LOG_CHARACTERS = 200_000  # of a step, in logs.txt
TABLES = ["graph_equals_eager", "power", "speed_1558m", "profile", "gemm_table", "speed_with_table", "kernel_speed",
          "attention_speed", "packed_samples", "peers", "sharding_overhead", "predicted_steps", "families", "fine_tune",
          "peft", "offload", "speed_sizes"]


def read(path, default):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return default


def write(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def gpu_name():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit",
                               "--format=csv,noheader"], capture_output=True, text=True)
        return done.stdout.strip() or "no GPU"
    except OSError:
        return "no GPU"


def known_gpu(name):
    """Its data sheet, or none."""
    return next((gpu for key, gpu in predict.GPUS.items() if key in name), None)


class Results:
    """What is known: files of --work, written together to --out."""

    def __init__(self, work, out, step_names):
        self.work, self.out, self.step_names = work, out, step_names

    def path(self, *parts):
        return os.path.join(self.work, *parts)

    def begin(self, keep):
        """Empties --work; if `keep`, takes up what --out has of these sources and this GPU."""
        for folder in ("steps", "measured", "tests"):
            shutil.rmtree(self.path(folder), ignore_errors=True)
            os.makedirs(self.path(folder))
        for name in self.step_names:
            if os.path.exists(self.path(name + ".log")):
                os.remove(self.path(name + ".log"))
        earlier = read(os.path.join(self.out, "verify.json"), {})
        same = (earlier.get("sources_sha256") == sources_sha256() and
                str(earlier.get("gpu", "")).split(",")[0] == gpu_name().split(",")[0])
        if not keep or not same:
            return
        for step in earlier["steps"]:
            if step["verdict"] != "not run":
                write_json(self.path("steps", step["name"] + ".json"), step)
        for name, content in read(os.path.join(self.out, "measured.json"), {}).items():
            write_json(self.path("measured", name), content)
        if os.path.exists(os.path.join(self.out, "tests.xml")):
            shutil.copy(os.path.join(self.out, "tests.xml"), self.path("tests", "0_earlier.xml"))
        self.restore_logs()

    def restore_logs(self):
        try:
            with open(os.path.join(self.out, "logs.txt"), errors="replace") as file:
                sections = ("\n" + file.read()).split("\n==== ")[1:]
        except OSError:
            return
        for section in sections:
            head, _, log = section.partition("\n")
            write(self.path(head.split(":")[0] + ".log"), log)

    def steps(self):
        return [read(self.path("steps", name + ".json"),
                     {"name": name, "verdict": "not run", "seconds": 0}) for name in self.step_names]

    def measured(self):
        return {os.path.basename(path): read(path, None)
                for path in sorted(glob.glob(self.path("measured", "*.json")))}

    def tests(self):
        """The suites of all files, of two of the same the later one."""
        suites = {}
        for path in sorted(glob.glob(self.path("tests", "*.xml"))):
            for suite in xml.parse(path).getroot():
                suites[suite.get("package", ""), suite.get("name")] = suite
        root = xml.Element("testsuites")
        root.extend(suite for _, suite in sorted(suites.items(), key=lambda item: item[0]))
        return root

    def log(self, name):
        try:
            with open(self.path(name + ".log"), errors="replace") as file:
                return file.read()[-LOG_CHARACTERS:]
        except OSError:
            return ""


def number(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}".rstrip("0").rstrip(".")


def tests_in_words(tests):
    failed = [f"{suite.get('name')}.{case.get('name')}" for suite in tests
              for case in suite.iter("testcase")
              if any(problem.tag in ("failure", "error") for problem in case)]
    count = len(list(tests.iter("testcase")))
    return f"{count} tests, {len(failed)} failed" + (": " + ", ".join(failed) if failed else "")


def markdown(report, results, measured, tests, shares):
    lines = [f"{report['gpu']}; {report['date']}; {report['revision'] or 'no revision'}", "",
             "| step | verdict | seconds |", "|---|---|---|"]
    lines += [f"| {step['name']} | {step['verdict']} | {step['seconds']} |" for step in report["steps"]]
    lines += ["", tests_in_words(tests), "", "| figure | predicted | goal | measured | |",
              "|---|---|---|---|---|"]
    verdicts = {True: "pass", False: "MISSED", None: ""}
    for row in report["goals"]:
        verdict = "not measured" if row["measured"] is None else verdicts[row["passed"]]
        lines.append(f"| {row['figure']} | {number(row['predicted'])} | {row['goal'] or '-'} | "
                     f"{number(row['measured'])} | {verdict} |")
    gpu = known_gpu(report["gpu"])
    if gpu and measured.get("step_kernels.json"):
        lines += [""] + predict.table(measured["step_kernels.json"], gpu, shares,
                                      goals.measured_lines(measured))
    for name in TABLES:
        rows = [line for line in results.log(name).splitlines()
                if re.match(r"\||\d+/\d+ |sustained |not measured|full_shard / ", line)]
        if rows:
            lines += ["", name, "", *rows]
    return "\n".join(lines) + "\n"


def write_report(args):
    """The worst that can be said, as an exit code."""
    results = Results(args.work, args.out, args.steps.split())
    if args.begin:
        results.begin(args.begin == "continue")
        print(*[step["name"] for step in results.steps() if step["verdict"] == "ok"])
    if args.add:
        name, verdict, seconds = args.add
        write_json(results.path("steps", name + ".json"),
                   {"name": name, "verdict": verdict, "seconds": int(seconds)})
    steps, measured, tests = results.steps(), results.measured(), results.tests()
    gpu = gpu_name()
    shares = predict.bandwidth_shares(read(SASS, {}), known_gpu(gpu))
    figures = goals.Goals(known_gpu(gpu), shares)
    figures.by_steps(measured)
    figures.by_rates(measured.get("power.json", {}).get("sustained", {}))
    figures.by_sharding(measured.get("sharding.json", {}))
    figures.by_offload(measured.get("offload.json", {}))
    figures.by_kernels(measured.get("kernels.json", []))
    figures.by_attention(measured.get("attention.json", {}))
    report = {"date": datetime.date.today().isoformat(), "revision": revision(args.deps),
              "sources_sha256": sources_sha256(), "gpu": gpu, "command": args.command, "steps": steps,
              "goals": figures.rows}
    text = markdown(report, results, measured, tests, shares)
    write_json(os.path.join(args.out, "measured.json"), measured)
    write(os.path.join(args.out, "tests.xml"), xml.tostring(tests, encoding="unicode"))
    write(os.path.join(args.out, "logs.txt"), "".join(
        f"==== {step['name']}: {step['verdict']}\n{results.log(step['name'])}\n" for step in steps
        if step["verdict"] != "not run"))
    write(os.path.join(args.out, "verify.md"), text)
    write_json(os.path.join(args.out, "verify.json"), report)  # last: by it the others are taken up
    if args.begin:
        return 0
    print(text, end="")
    if any(step["verdict"].startswith("FAILED") for step in steps):
        return 1
    complete = all(not step["verdict"].startswith("not run") for step in steps)
    return 0 if complete and all(row["passed"] for row in figures.rows if row["goal"]) else 3


def print_prediction(args):
    if os.access(args.predict, os.X_OK):
        shapes = json.loads(subprocess.run([args.predict], check=True, capture_output=True).stdout)
    else:
        shapes = read(args.predict, None)
    if not shapes:
        sys.exit(f"report.py: {args.predict} is neither the program step_kernels nor what it printed")
    measured = read(args.measured, {}) if args.measured else {}
    measured.setdefault("step_kernels.json", shapes)
    gpu = predict.GPUS[args.gpu]
    shares = predict.bandwidth_shares(read(SASS, {}), gpu)
    print("\n".join(predict.table(shapes, gpu, shares, goals.measured_lines(measured))))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work")
    parser.add_argument("--out")
    parser.add_argument("--command", default="")
    parser.add_argument("--steps", default="")
    parser.add_argument("--deps", default="", help="where the file of carry.sh is unpacked")
    parser.add_argument("--begin", choices=["fresh", "continue"])
    parser.add_argument("--add", nargs=3, metavar=("NAME", "VERDICT", "SECONDS"))
    parser.add_argument("--predict", metavar="STEP_KERNELS")
    parser.add_argument("--gpu", default="H200", choices=predict.GPUS)
    parser.add_argument("--measured", metavar="FILE")
    args = parser.parse_args()
    if args.predict:
        return print_prediction(args)
    if not args.work or not args.out:
        parser.error("--work and --out, or --predict")
    return write_report(args)


if __name__ == "__main__":
    sys.exit(main())
