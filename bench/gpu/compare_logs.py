#!/usr/bin/env python3
"""Compares the steps of two run logs.

    compare_logs.py --bits A.jsonl B.jsonl          equal losses, norms and parameters
    compare_logs.py --bits --graph-in-second A B    and B replayed a CUDA graph, A did not
    compare_logs.py --within 1e-4 A.jsonl B.jsonl   losses within this part of each other
"""

import argparse
import json
import statistics
import sys


def read(path):
    lines = [json.loads(line) for line in open(path)]
    steps = [line for line in lines if line["kind"] == "step"]
    summary = next(line for line in lines if line["kind"] == "summary")
    return steps, summary


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--bits", action="store_true")
    how.add_argument("--within", type=float)
    parser.add_argument("--graph-in-second", action="store_true")
    parser.add_argument("logs", nargs=2)
    args = parser.parse_args()
    (a, a_end), (b, b_end) = map(read, args.logs)
    if len(a) != len(b) or not a:
        sys.exit(f"{len(a)} steps and {len(b)} steps")
    if args.graph_in_second and (a_end["cuda_graph"], b_end["cuda_graph"]) != (False, True):
        sys.exit(f"CUDA graphs: {a_end['cuda_graph']} and {b_end['cuda_graph']}")
    if args.bits:
        for x, y in zip(a, b):
            for key in ("loss", "grad_norm"):
                if x[key] != y[key]:
                    sys.exit(f"step {x['step']}: {key} {x[key]!r} and {y[key]!r}")
        if not a_end["parameters_sha256"] or a_end["parameters_sha256"] != b_end["parameters_sha256"]:
            sys.exit("other parameters, or no hash of them")
        print(f"{len(a)} steps: the same bits")
        if args.graph_in_second:
            print("| step | ms |\n|---|---|")
            for name, steps in (("eager", a), ("graph", b)):
                half = steps[len(steps) // 2:]
                print(f"| {name} | {statistics.median(step['seconds'] for step in half) * 1e3:.2f} |")
        return
    worst = max(abs(x["loss"] - y["loss"]) / abs(x["loss"]) for x, y in zip(a, b))
    print(f"{len(a)} steps: losses differ by {worst:.2e} at most")
    if not worst <= args.within:
        sys.exit(f"more than {args.within:g}")


if __name__ == "__main__":
    main()
