#!/usr/bin/env python3
"""Holds bench/gpu/step_kernels to the model's own count of FLOPs, and the predicted step to its parts.

    check_predict.py STEP_KERNELS REPORT
"""

import json
import os
import subprocess
import sys

STEP_KERNELS, REPORT = sys.argv[1:]


def check(holds, *what):
    if not holds:
        sys.exit("check_predict.py: " + " ".join(str(part) for part in what))


def near(a, b, within):
    return abs(a - b) <= within * abs(b)


def shapes(*args):
    done = subprocess.run([STEP_KERNELS, *args], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def table(*args):
    """Rows by their first cell."""
    done = subprocess.run([sys.executable, REPORT, "--predict", STEP_KERNELS, *args], check=True,
                          capture_output=True, text=True)
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()
            if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


def check_shapes():
    # 12 layers of 768, 1024 tokens; the vocabulary may be padded.
    step = shapes("--model", "gpt2-124m", "--micro-batch", "4")
    tokens, layers, width = 4 * 1024, 12, 768
    attention = 6.0 * layers * 1024 * width * tokens
    rows = step["steps"][0]["kernels"]
    gemms = sum(row["count"] * row["flops"] for row in rows if row["kernel"] == "gemm")
    check(near(gemms, step["flops_per_token"] * tokens - attention, 2e-3), "GEMMs are", gemms, "FLOPs")
    causal = sum(row["count"] * row["flops"] for row in rows if row["kernel"].startswith("attention"))
    check(near(causal, attention * 7 / 6, 1e-9), "attention is", causal, "FLOPs")  # scores twice
    parameters = 124.4e6
    for kernel, bytes_each in (("optimizer_step", 30), ("exact_squares", 4)):
        moved = sum(row["count"] * row["bytes"] for row in rows if row["kernel"] == kernel)
        check(near(moved, bytes_each * parameters, 5e-3), kernel, "moves", moved, "bytes")
    norms = sum(row["count"] for row in rows if row["kernel"].startswith("layer_norm"))
    check(norms == 2 * (2 * layers + 1), norms, "layer norms")


def check_table():
    for gpu in ("H100", "H200"):
        rows = table("--gpu", gpu)
        numbers = lambda name: [float(cell.rstrip("%")) for cell in rows[name][1:]]
        groups = ["GEMM", "attention", "memory-bound", "optimizer", "gaps", "overlap"]
        lines = {name: numbers(name) for name in rows if name.split(":")[0] in groups and ":" in name}
        check(len([name for name in lines if name.startswith("GEMM")]) == 15, "not 15 GEMMs:", list(lines))
        for place in range(3):
            parts = sum(line[place] for name, line in lines.items() if not name.endswith("any order"))
            check(near(parts, numbers("step, default attention")[place], 1e-3), gpu, "lines add up to", parts)
            for group in groups[:-1]:
                check(0 < numbers(group)[place] < numbers("step, default attention")[place], group)
            check(-numbers("optimizer")[place] < numbers("overlap")[place] < 0, "what is hidden was there")
        mfu = numbers("MFU, default attention")
        check(30 < mfu[0] < mfu[1] < mfu[2] < 80, gpu, "MFU", mfu)
        check(all(a < b for a, b in zip(mfu, numbers("MFU, any order"))), "a fixed order costs nothing")
    slower, faster = (float(table("--gpu", gpu)["optimizer"][1]) for gpu in ("H100", "H200"))
    check(near(slower / faster, 4.8 / 3.35, 1e-2), "the optimizer is not bound by memory:", slower, faster)


def check_shares():
    """Each kernel that is bound by memory has a row in the table of SASS, once there is one."""
    folder = os.path.dirname(os.path.abspath(REPORT))
    path = os.path.join(folder, "..", "..", "kernels", "src", "cuda", "expected_sass.json")
    if not os.path.exists(path):
        return
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    import predict
    with open(path) as file:
        shares = predict.bandwidth_shares(json.load(file), predict.GPUS["H200"])
    rows = shapes("--model", "gpt2-124m", "--micro-batch", "1")["steps"][0]["kernels"]
    for kernel in {row["kernel"].split(",")[0] for row in rows}:
        check(kernel in shares or kernel == "gemm" or kernel.startswith("attention"),
              kernel, "has no row in", path, "by predict.SASS_NAMES")


check_shapes()
check_table()
check_shares()
print("the predicted step adds up")
