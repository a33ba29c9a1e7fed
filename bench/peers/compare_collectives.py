#!/usr/bin/env python3
"""Tessera's collectives beside Open MPI's and gloo's, in turns, on this machine.

    python3 bench/peers/compare_collectives.py --build build [--python VENV/bin/python] [--ranks 2]
        [--turns 3] [--sizes 64K,1M,16M] [--iterations 20] [--repeats 5]

Open MPI runs if build/bin/mpi_collectives was built and there is an mpirun; gloo if --python names a
Python that has torch (python3 -m venv VENV; VENV/bin/pip install torch numpy). A turn runs each of
them once, all in processes on this machine, fp32, one thread a rank; Tessera and MPI work in place.
Printed are microseconds of a call on the slowest rank, the median over turns and repeats with their
quartiles, and how many times as long the peer takes, the median of that ratio over turns with its quartiles.
Tessera runs as threads of one process and as several processes.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

from repeats import quartiles, show

HERE = os.path.dirname(os.path.abspath(__file__))
TIMEOUT = 1200  # seconds of one run
NAMES = ["all_gather", "reduce_scatter", "all_reduce", "broadcast"]


def in_bytes(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def clean_environment():
    """One thread a rank, and nothing of a launcher that this script may run under."""
    prefixes = ("OMP_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "OMPI_", "PMI", "SLURM_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    env["OMP_NUM_THREADS"] = "1"
    return env


def run(command, env):
    """Its standard output; its errors are shown if it fails."""
    result = subprocess.run(command, env=env, timeout=TIMEOUT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def from_lines(text):
    """Times by (collective, bytes), of lines such as "all_reduce 65536 12.3"."""
    times = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in NAMES:
            times.setdefault((words[0], int(words[1])), []).append(float(words[2]))
    return times


def tessera(options, launcher):
    """`launcher`: what stands between the program and its command."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            for name in NAMES:
                path = os.path.join(folder, "result.json")
                ranks = [] if launcher else ["-g", str(options.ranks)]
                run([options.program, *launcher, "bench", "collectives", "--device", "cpu", "--collective", name,
                     "-b", str(size), "-e", str(size), "-n", str(options.iterations), "-w", str(options.warm_ups),
                     "--repeats", str(options.repeats), "--threads-per-rank", "1", "-J", path, *ranks],
                    clean_environment())
                with open(path, encoding="utf-8") as file:
                    row = json.load(file)["results"][0]
                times[name, row["size"]] = row["in_place"]["repetitions"]
    return times


def peer_arguments(options):
    return ["--iterations", str(options.iterations), "--warm-ups", str(options.warm_ups), "--repeats",
            str(options.repeats), *map(str, options.sizes)]


def open_mpi(options):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return from_lines(run(["mpirun", *root, "--oversubscribe", "-np", str(options.ranks), options.mpi,
                           *peer_arguments(options)], clean_environment()))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def gloo(options):
    env = clean_environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                                 "WORLD_SIZE": str(options.ranks), "GLOO_SOCKET_IFNAME": "lo"}
    command = [options.python, os.path.join(HERE, "gloo_collectives.py"), *peer_arguments(options)]
    processes = [subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
                 for rank in range(options.ranks)]
    try:
        outputs = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode != 0 for process in processes):
        sys.exit("gloo's ranks failed; see above")
    return from_lines(outputs[0])


def print_results(turns, ours, theirs):
    """`turns`: of each turn, by who, the times of each collective and size."""
    print(f"{'collective':15} {'bytes':>10}  {'who':12} {'us':>10} {'(quartiles)':>21}  {'x ' + ours:>9} (quartiles)")
    for key in sorted(turns[0][ours], key=lambda key: (NAMES.index(key[0]), key[1])):
        for who in [ours, *theirs]:
            if key not in turns[0][who]:
                continue
            low, middle, high = quartiles([t for turn in turns for t in turn[who][key]])
            line = f"{key[0]:15} {key[1]:10}  {who:12} {middle:10.2f} {f'({low:.2f} to {high:.2f})':>21}"
            if who != ours:
                ratios = [statistics.median(turn[who][key]) / statistics.median(turn[ours][key]) for turn in turns]
                line += f"  {show(ratios):>9}"
            print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--python", help="of an environment with torch, for gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sizes", default="64K,1M,16M",
                        type=lambda text: [in_bytes(size) for size in text.split(",")])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--warm-ups", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    options.program = os.path.join(options.build, "bin", "tessera")
    options.mpi = os.path.join(options.build, "bin", "mpi_collectives")

    launch = ["launch", "--processes", str(options.ranks), "--"]
    runs = {"threads": lambda: tessera(options, []), "processes": lambda: tessera(options, launch)}
    if os.path.exists(options.mpi) and shutil.which("mpirun"):
        runs["Open MPI"] = lambda: open_mpi(options)
    else:
        print("Open MPI is left out: build the target mpi_collectives, and install mpirun")
    if options.python:
        runs["gloo"] = lambda: gloo(options)
    else:
        print("gloo is left out: name a Python that has torch with --python")
    turns = [{who: measure() for who, measure in runs.items()} for _ in range(options.turns)]
    print_results(turns, "threads", [who for who in runs if who != "threads"])


if __name__ == "__main__":
    main()
