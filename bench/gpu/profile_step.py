#!/usr/bin/env python3
"""Times each kernel of a training step on one GPU with Nsight Compute.

    profile_step.py --json OUT [--ncu ncu] [--launches 2000] [--seconds 60] PROGRAM ARGS...

PROGRAM ARGS is a short training run without CUDA graphs. Kernels run alone here, one after the other,
with caches as the kernel before left them: their times add up to a step's only where nothing overlaps.
Prints launches, microseconds and DRAM bytes of each kernel, by name and launch size, over all steps of
the run, the slowest first. Exits with 1 if nothing was profiled.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile

from gpu_run import write_json

METRICS = {"seconds": "gpu__time_duration.sum", "read": "dram__bytes_read.sum",
           "written": "dram__bytes_write.sum"}
SHOWN = 60  # kernels


def short(name):
    """Without what is the same for all: return types, arguments, namespaces."""
    name = re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", name.removeprefix("void "))
    return re.sub(r"\b(tessera|cuda|detail|<unnamed>|\(anonymous namespace\))::", "", name)


def kernels_of(lines):
    """Rows of ncu's raw page as CSV: a line of names, one of units, then one for each launch."""
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return []
    kernels = {}
    for row in list(csv.DictReader(lines[begin:]))[1:]:
        key = short(row["Kernel Name"]), row["Grid Size"], row["Block Size"]
        seconds, read, written = (float(row[metric].replace(",", "")) for metric in METRICS.values())
        kernel = kernels.setdefault(key, {"kernel": key[0], "grid": key[1], "block": key[2],
                                          "launches": 0, "seconds": 0.0, "bytes": 0.0})
        kernel["launches"] += 1
        kernel["seconds"] += seconds * 1e-9  # base units: nanoseconds, bytes
        kernel["bytes"] += read + written
    return sorted(kernels.values(), key=lambda kernel: -kernel["seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--launches", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as log:
        command = [args.ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
                   "--cache-control", "none", "--metrics", ",".join(METRICS.values()), "--launch-count",
                   str(args.launches), "--target-processes", "all", "--log-file", log.name, *args.command]
        try:
            status = subprocess.run(command, timeout=args.seconds).returncode
        except subprocess.TimeoutExpired:
            status = f"over {args.seconds:.0f} s"
        lines = log.read().splitlines()
    kernels = kernels_of(lines)
    write_json(args.json, kernels)
    if not kernels:
        print("\n".join(lines[-20:]))
        sys.exit(f"nothing was profiled (exit code {status})")
    total = sum(kernel["seconds"] for kernel in kernels)
    print("| kernel | grid x block | launches | us each | GB/s | of all |\n|---|---|---|---|---|---|")
    for kernel in kernels[:SHOWN]:
        print(f"| {kernel['kernel'][:90]} | {kernel['grid']} x {kernel['block']} | {kernel['launches']} | "
              f"{kernel['seconds'] / kernel['launches'] * 1e6:.1f} | "
              f"{kernel['bytes'] / kernel['seconds'] * 1e-9:.0f} | {kernel['seconds'] / total:.1%} |")
    print(f"\n{sum(kernel['launches'] for kernel in kernels)} launches, {total * 1e3:.2f} ms of kernels")
    sys.exit(status != 0)


if __name__ == "__main__":
    main()
