"""Judges measurements: each figure beside its prediction and its goal."""

import peers_in_turns
import predict

SIZES = ["gpt2-1558m", "gpt2-124m", "gpt2-350m", "gpt2-774m"]
# With bias gradients, GELU and residuals in passes that are there anyway, and AdamW hidden; an attention of
# our own whose backward keeps its order without scratch would reach 0.55, and fp8 0.6.
BEST_MFU = 0.53
# Benchmarks of a kernel by another name than the kernel table's.
BENCHMARKS = {"optimizer_step": "adamw"}


class Goals:
    """Rows of a figure, its prediction, its goal, what was measured, and whether that passes."""

    def __init__(self, gpu, shares):
        self.gpu, self.shares, self.rows = gpu, shares, []

    def judge(self, figure, measured, at_least=None, at_most=None, predicted=None):
        passed, goal = None, ""
        if at_least is not None:
            goal = f">= {at_least:g}"
        elif at_most is not None:
            goal = f"<= {at_most:g}"
        if measured is not None and goal:
            passed = measured >= at_least if at_least is not None else measured <= at_most
        self.rows.append({"figure": figure, "predicted": predicted, "goal": goal, "measured": measured,
                          "passed": passed})

    def by_steps(self, measured):
        shapes = measured.get("step_kernels.json")
        predictions = {}
        if shapes and self.gpu:
            for any_order in (False, True):
                for step in predict.predict(shapes, self.gpu, self.shares, any_order):
                    key = shapes["model"], step.micro_batch, "any order" if any_order else "default"
                    predictions[key] = step.mfu
        runs = {(run["model"], run["micro_batch"], run["attention"]): run for run in runs_of(measured)}
        for key in sorted({*predictions, *runs}, key=lambda key: (SIZES.index(key[0]), key[2], key[1])):
            model, micro_batch, attention = key
            self.judge(f"{model}, micro-batch {micro_batch}, {attention} attention: MFU of 989 TFLOP/s",
                       runs.get(key, {}).get("mfu_of_989"), predicted=predictions.get(key))
        for model in SIZES:
            mfus = [run["mfu_of_989"] for (name, *_), run in runs.items() if name == model]
            best = max(mfus, default=None)
            if model == "gpt2-1558m":
                self.judge(f"{model}: best MFU", best, at_least=BEST_MFU,
                           predicted=max(predictions.values(), default=None))
        peers = {(row["model"], row["who"]): row["seconds"]
                 for row in peers_in_turns.summaries(measured.get("peers.json", {}).get("runs", []))}
        for who, at_least in ((peers_in_turns.TORCH, 1.1), (peers_in_turns.LLM_C, 1.05)):
            for model in SIZES[:2]:
                # Like theirs, whose backward adds in no fixed order.
                ours, theirs = (peers.get((model, name)) for name in (peers_in_turns.ANY_ORDER, who))
                self.judge(f"{model}: speed of {who}, in turns", theirs / ours if ours and theirs else None,
                           at_least=at_least)

    def by_rates(self, sustained):
        products = sustained.get("matmul", {}).get("flops_per_second")
        copy = sustained.get("copy", {}).get("bytes_per_second")
        self.judge("matmul for 3 s: TFLOP/s", products and products * 1e-12,
                   predicted=predict.PRODUCT_PEAK * 1e-12)
        bandwidth = self.gpu and predict.COPY_SHARE * self.gpu.bytes_per_second * 1e-9
        self.judge("copy for 3 s: GB/s, read and written", copy and copy * 1e-9, predicted=bandwidth)

    def by_sharding(self, sharding):
        self.judge("full_shard with one rank: time of no_shard",
                   sharding.get("full_shard_over_no_shard"), at_most=1.02)
        self.judge("bytes copied in and out around collectives", sharding.get("copied_bytes"), at_most=0)

    def by_offload(self, offload):
        host = offload.get("host_optimizer", {})
        self.judge("AdamW on the host: part of its memory's bandwidth",
                   host["bytes_per_second"] / host["limit_bytes_per_second"] if host else None, at_least=0.9)
        for row in offload.get("offload", []):
            name = f"{row['model']}, optimizer on the host"
            if "seconds_without" in row:
                self.judge(f"{name}: time of one on the GPU", row["seconds"] / row["seconds_without"],
                           at_most=1.1)
            for key, words in (("device_to_host", "to the host"), ("host_to_device", "from it")):
                self.judge(f"{name}: part of the link's rate {words}", row.get(f"{key}_share_of_link"))

    def by_kernels(self, kernels):
        rows = [row for row in kernels if "of_copy" in row and row["name"] != "copy"]
        # Between two launches of an operation memory is idle: those of several are rows apart.
        for row in sorted(rows, key=lambda row: row["launches"] > 1) or [{}]:
            name, launches = row.get("name", "any memory-bound kernel"), row.get("launches", 1)
            predicted = None
            if row and self.shares:
                share = predict.bandwidth_share(name, self.shares)
                predicted = share / predict.COPY_SHARE
            if launches > 1:
                name += f", {launches:g} launches"
            self.judge(f"{name}: part of the copy's bandwidth", row.get("of_copy"),
                       at_least=0.92 if row.get("name") == "adamw" else 0.9, predicted=predicted)

    def by_attention(self, attention):
        seconds = attention.get("seconds", {})

        def speed(ours, *passes):
            """How fast, beside PyTorch's."""
            try:
                return sum(seconds[f"attention_{p}_torch"] for p in passes) / sum(
                    seconds[f"attention_{p}_{ours}"] for p in passes)
            except KeyError:
                return None

        self.judge("cuDNN attention forward: speed of SDPA", speed("cudnn", "forward"), at_least=0.97)
        self.judge("cuDNN attention backward, in any order: speed of SDPA",
                   speed("cudnn_any_order", "backward"), at_least=0.97)
        self.judge("own attention, both passes: speed of SDPA", speed("own", "forward", "backward"),
                   at_least=0.5)


def runs_of(measured):
    """All training runs; of two of the same, the one of the later file."""
    return [run for file in ("speed_sizes.json", "speed_1558m.json", "speed_with_table.json")
            for run in measured.get(file, {}).get("runs", [])]


def gemm_key(row):
    """Of a row of step_kernels, or of a table of GEMMs."""
    residual = bool(row.get("residual_stride", row.get("residual", 0)))
    return (row["m"], row["n"], row["k"], row["transpose_a"], row["transpose_b"], row["accumulate"],
            row["c_dtype"], row["epilogue"], residual)


def measured_lines(measured):
    """What was measured of the lines of predict.table: {(micro_batch, line): seconds}.

    Kernels that were measured at one size count by their rate, bytes or FLOPs for each second.
    """
    shapes = measured.get("step_kernels.json")
    if not shapes:
        return {}
    kernels = {row["name"]: row for row in measured.get("kernels.json", [])}
    gemms = {gemm_key(row): row["microseconds"] * 1e-6
             for row in measured.get("gemm_table.json", {}).get("gemms", [])}
    attention = measured.get("attention.json", {}).get("seconds", {})
    attention_rows = {row["name"]: row["flops"] for row in measured.get("kernels.json", [])
                      if "flops" in row}
    lines = {}

    def add(step, line, row, seconds):
        if seconds is not None:
            key = step["micro_batch"], line
            lines[key] = lines.get(key, 0.0) + row["count"] * seconds

    for step in shapes["steps"]:
        for row in step["kernels"]:
            line = predict.line_of(row)
            if line[0] == "GEMM":
                add(step, line, row, gemms.get(gemm_key(row)))
            elif line[0] == "attention":
                names = {"forward": [(line, "attention_forward_cudnn")],
                         "backward": [(line, "attention_backward_cudnn"),
                                      (("attention", "backward, any order"),
                                       "attention_backward_cudnn_any_order")]}[line[1]]
                for key, name in names:
                    if name in attention and name in attention_rows:
                        add(step, key, row, row["flops"] * attention[name] / attention_rows[name])
            else:
                plain = row["kernel"].split(",")[0]
                bench = kernels.get(BENCHMARKS.get(plain, plain))
                add(step, line, row, bench and row["bytes"] * bench["seconds"] / bench["bytes"])
    for run in runs_of(measured):
        if run["model"] == shapes["model"]:
            name = "any order" if run["attention"] == "any order" else "default attention"
            lines[run["micro_batch"], ("step", name)] = run["seconds"]
    return lines
