"""The predicted time of a training step on one GPU, kernel by kernel, from shapes alone.

A model of few assumptions, each of which the table names, to be wrong in a way that a measurement
shows: which line, and by how much.
"""

import math
import re

MS = 1e3


class Gpu:
    """An SXM part by its data sheet: dense bf16, HBM, multiprocessors."""

    def __init__(self, name, bytes_per_second):
        self.name, self.bytes_per_second = name, bytes_per_second
        self.peak, self.multiprocessors = 989e12, 132


GPUS = {"H100": Gpu("H100", 3.35e12), "H200": Gpu("H200", 4.8e12)}

# The best matrix product that others published for an H100 or H200, 2048 x 2048 x 13312 in bf16
# (stas00/ml-engineering, accelerators): what full tiles sustain.
PRODUCT_PEAK = 794.5e12
# Tiles that cuBLASLt has for Hopper, and how much of PRODUCT_PEAK each sustains. The share of the
# small one is assumed.
TILES = {(128, 256): 1.0, (256, 128): 1.0, (128, 128): 0.92}
# A tile's start and end cost as much as this depth of its product. Assumed; with it the products of
# gpt2-1558m run at 64 to 66 % of the peak, as in published training runs of 47 to 57 % MFU.
TILE_OVERHEAD_DEPTH = 128
# Causal, heads of 64, length 1024: cuDNN's, measured on an H200 (bench/results/h200), where FlashAttention-3's
# paper has 330 and 250 on an H100. In a fixed order the backward pass goes through scratch.
ATTENTION_FORWARD, ATTENTION_BACKWARD = 318e12, 246e12
ATTENTION_BACKWARD_FIXED_ORDER = 226e12
# Of the bandwidth, where the SASS table has no row for a kernel, and at most.
BANDWIDTH_SHARE, COPY_SHARE = 0.85, 0.92
# Between two kernels of a CUDA graph, one of which waits for the other.
GAP_SECONDS = 1.0e-6
# Kernels that a call launches, where it is not one.
LAUNCHES = {"attention_backward": 3, "layer_norm_backward": 2, "layer_norm_backward, residual": 2,
            "embedding_backward": 4}

# A kernel of the kernel table, or of the benchmarks, by its names in the table of SASS: bf16 activations,
# fp32 gradients, vectors of 16 bytes.
SASS_NAMES = {
    "layer_norm_forward": r"^layer_norm/normalize_in_registers<false, 8, false, bf16>",
    "layer_norm_backward": r"^layer_norm_backward/backward_in_registers<bf16, 1, false, ",
    "cross_entropy": r"^cross_entropy/softmax_cross_entropy<1, 0, NoCap, bf16>",
    "add": r"^elementwise/elementwise_kernel<8, Add<bf16, bf16>",
    "cast": r"^elementwise/elementwise_kernel<\d, Cast<float, bf16>",
    "gelu_forward": r"^activations/elementwise_kernel<8, Forward<Gelu, bf16>",
    "gelu_backward": r"^activations/elementwise_kernel<8, Backward<Gelu, bf16>",
    "dropout": r"^dropout/.*bf16",
    "bias_gradient": r"^bias_gradient/sum_slabs_kernel<8, bf16>",
    "embedding_forward": r"^embedding/embedding_forward_kernel<8, true, bf16>",
    "embedding_backward": r"^embedding/embedding_backward_kernel<[48], .*bf16, float>",
    "optimizer_step": r"^optimizer/.*AdamW.*float",
    "adamw": r"^optimizer/.*AdamW.*float",
    "exact_squares": r"^exact_squares/add_squares<float, true>",
    "ordered_sum": r"^ordered_sum/.*float",
}

# Of the optimizer's time, which is bound by memory, what the next forward pass hides, which mostly is not.
# Assumed; both slow down each other.
HIDDEN_SHARE = 0.5

GROUPS = ["GEMM", "attention", "memory-bound", "optimizer", "gaps", "overlap"]


def assumptions(gpu, sass):
    known = "the SASS table" if sass else f"{BANDWIDTH_SHARE:.0%} for all: there is no SASS table"
    return [
        f"peak {gpu.peak * 1e-12:.0f} TFLOP/s dense bf16 and {gpu.bytes_per_second * 1e-12:.2f} TB/s "
        f"({gpu.name} SXM, data sheet); {gpu.multiprocessors} multiprocessors",
        f"GEMM: full tiles sustain {PRODUCT_PEAK * 1e-12:.1f} TFLOP/s (best published); waves of tiles "
        f"of 128x256 or 128x128 ({TILES[128, 128]:.0%} as fast); a tile starts and ends in the time of "
        f"a depth of {TILE_OVERHEAD_DEPTH}; an epilogue's tensors move beside nothing",
        f"attention: {ATTENTION_FORWARD * 1e-12:.0f} TFLOP/s forward, "
        f"{ATTENTION_BACKWARD * 1e-12:.0f} backward in any order, "
        f"{ATTENTION_BACKWARD_FIXED_ORDER * 1e-12:.0f} in a fixed one, of causal FLOPs",
        f"memory-bound: bytes that a kernel must move, at the share of the bandwidth of {known}, "
        f"at most {COPY_SHARE:.0%}",
        f"gaps: {GAP_SECONDS * 1e6:.1f} us between kernels of a graph",
        f"overlap: {HIDDEN_SHARE:.0%} of the optimizer's step is hidden behind the next forward pass; "
        "nothing else runs side by side",
    ]


def gemm_seconds(row, gpu):
    m, n, k = row["m"], row["n"], row["k"]
    fastest = math.inf
    for (rows, columns), share in TILES.items():
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        waves = math.ceil(tiles / gpu.multiprocessors)
        per_multiprocessor = PRODUCT_PEAK * share / gpu.multiprocessors
        fastest = min(fastest, waves * 2.0 * rows * columns * (k + TILE_OVERHEAD_DEPTH) /
                      per_multiprocessor)
    bandwidth = gpu.bytes_per_second * COPY_SHARE
    operands = row["bytes"] - row["epilogue_bytes"]
    return max(fastest, operands / bandwidth) + row["epilogue_bytes"] / bandwidth


def gemm_line(row):
    """Its weight, (outputs, inputs), and the pass: the same line for every micro-batch."""
    if row["transpose_a"]:
        return f"{row['m']}x{row['n']} weight gradient"
    if row["transpose_b"]:
        return f"{row['n']}x{row['k']} forward"
    return f"{row['k']}x{row['n']} input gradient"


def bandwidth_shares(sass, gpu):
    """Of each kernel of the kernel table, by the table of SASS, whose rows are for an H200.

    A row says how many bytes are on their way at once: with less bandwidth they are a larger share.
    Of several rows that a kernel may be, the least.
    """
    shares = {}
    for kernel, pattern in SASS_NAMES.items():
        found = [row["predicted_bandwidth_share"] for name, row in sass.get("kernels", {}).items()
                 if re.search(pattern, name) and row["predicted_bandwidth_share"] is not None]
        if gpu and found:
            shares[kernel] = min(1.0, min(found) * GPUS["H200"].bytes_per_second / gpu.bytes_per_second)
    return shares


def bandwidth_share(kernel, shares):
    """Of a kernel by its name in the kernel table."""
    return min(shares.get(kernel.split(",")[0], BANDWIDTH_SHARE), COPY_SHARE)


def seconds_of(row, gpu, shares, any_order):
    kernel = row["kernel"]
    if kernel == "gemm":
        return gemm_seconds(row, gpu)
    if kernel == "attention_forward":
        return row["flops"] / ATTENTION_FORWARD
    if kernel == "attention_backward":
        return row["flops"] / (ATTENTION_BACKWARD if any_order else ATTENTION_BACKWARD_FIXED_ORDER)
    return row["bytes"] / (gpu.bytes_per_second * bandwidth_share(kernel, shares))


def line_of(row):
    """(group, line) of a kernel."""
    kernel = row["kernel"]
    if kernel == "gemm":
        return "GEMM", gemm_line(row)
    if kernel.startswith("attention"):
        return "attention", kernel.replace("attention_", "")
    if kernel in ("optimizer_step", "exact_squares"):
        return "optimizer", kernel
    return "memory-bound", kernel


class Prediction:
    """A step's lines, in seconds."""

    def __init__(self, step, flops_per_token, gpu, shares, any_order):
        self.micro_batch, self.any_order = step["micro_batch"], any_order
        self.lines, self.launches = {}, {}
        for row in step["kernels"]:
            line = line_of(row)
            launches = row["count"] * LAUNCHES.get(row["kernel"], 1)
            self.lines[line] = (self.lines.get(line, 0.0) +
                                row["count"] * seconds_of(row, gpu, shares, any_order))
            self.launches[line] = self.launches.get(line, 0) + row["count"]
            gaps = "gaps", "between kernels"
            self.lines[gaps] = self.lines.get(gaps, 0.0) + launches * GAP_SECONDS
            self.launches[gaps] = self.launches.get(gaps, 0) + launches
            if row["kernel"] == "optimizer_step":
                hidden = "overlap", "optimizer_step behind the next forward"
                self.lines[hidden] = -HIDDEN_SHARE * self.lines[line]
                self.launches[hidden] = self.launches[line]
        self.seconds = sum(self.lines.values())
        self.flops = flops_per_token * step["tokens"]
        self.mfu = self.flops / self.seconds / gpu.peak

    def group(self, group):
        return sum(seconds for line, seconds in self.lines.items() if line[0] == group)


def predict(shapes, gpu, shares, any_order):
    """Predictions of the steps of step_kernels' JSON, in its order."""
    return [Prediction(step, shapes["flops_per_token"], gpu, shares, any_order)
            for step in shapes["steps"]]


def table(shapes, gpu, shares, measured=None):
    """The table as lines of Markdown. `measured`: {(micro_batch, line): seconds}, of any lines."""
    measured = measured or {}
    fixed, free = (predict(shapes, gpu, shares, any_order) for any_order in (False, True))
    order = sorted({line for step in fixed for line in step.lines},
                   key=lambda line: (GROUPS.index(line[0]), -fixed[0].lines.get(line, 0.0)))

    def cell(step, key, seconds):
        beside = measured.get((step.micro_batch, key))
        return f"{seconds * MS:.2f}" + (f" ({beside * MS:.2f})" if beside is not None else "")

    def row(name, count, cells):
        return "| " + " | ".join([name, count, *cells]) + " |"

    lines = [f"{shapes['model']} on one {gpu.name}, bf16, sequences of {shapes['sequence_length']}: "
             "predicted ms of a step" + (" (measured)" if measured else ""), ""]
    lines += [f"- {text}" for text in assumptions(gpu, shares)]
    lines += ["", row("kernel", "calls", [f"micro-batch {step.micro_batch}" for step in fixed]),
              "|---|---|" + "---|" * len(fixed)]
    for key in order:
        group, line = key
        calls = str(fixed[0].launches[key])
        lines.append(row(f"{group}: {line}" + (", fixed order" if line == "backward" else ""), calls,
                         [cell(step, key, step.lines.get(key, 0.0)) for step in fixed]))
        if line == "backward":
            lines.append(row(f"{group}: {line}, any order", calls,
                             [cell(step, (group, "backward, any order"), step.lines[key])
                              for step in free]))
        if key == order[-1] or order[order.index(key) + 1][0] != group:
            lines.append(row(f"**{group}**", "", [f"{step.group(group) * MS:.2f}" for step in fixed]))
    for name, steps in (("default attention", fixed), ("any order", free)):
        key = "step", name
        lines.append(row(f"**step, {name}**", "", [cell(step, key, step.seconds) for step in steps]))
        beside = [measured.get((step.micro_batch, key)) for step in steps]
        lines.append(row(f"**MFU, {name}**", "", [
            f"{step.mfu:.1%}" + (f" ({step.flops / seconds / gpu.peak:.1%})" if seconds else "")
            for step, seconds in zip(steps, beside)]))
    rate = fixed[0]
    products = sum(r["count"] * r["flops"] for r in shapes["steps"][0]["kernels"] if r["kernel"] == "gemm")
    lines += ["", f"GEMMs run at {products / rate.group('GEMM') / gpu.peak:.0%} of the peak at "
              f"micro-batch {rate.micro_batch}, and are {rate.group('GEMM') / rate.seconds:.0%} of the step."]
    return lines
