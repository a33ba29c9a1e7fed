"""What the scripts that measure on a GPU share: runs of tessera, with clocks and power beside them."""

import ctypes
import json
import os
import shlex
import statistics
import subprocess
import tempfile
import threading
import time

PEAK = 989e12  # dense bf16 of an H100 or H200 SXM, by its data sheet
# A GPU heats for seconds until its limit of power holds its clock down: the last half of a run counts.
STEPS = 40


class NotMeasured(Exception):
    pass


def write_json(path, value):
    """At once: a reader finds the old file or the new one."""
    with open(path + ".new", "w") as file:
        json.dump(value, file, indent=2)
    os.replace(path + ".new", path)


def energy_meter():
    """A function for the joules that GPU 0 has used since its driver was loaded, by NVML; None without it."""
    try:
        nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
            return None
        total = nvml.nvmlDeviceGetTotalEnergyConsumption
    except (OSError, AttributeError):
        return None

    def joules():
        millijoules = ctypes.c_ulonglong()
        return None if total(device, ctypes.byref(millijoules)) else millijoules.value * 1e-3
    return joules


class Samples:
    """The GPU's clocks, power, temperature and energy while a block runs, by nvidia-smi and NVML; none
    without them. Power is the instant's: `power.draw` is a mean of the last second."""

    FIELDS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "watts": "power.draw.instant",
              "celsius": "temperature.gpu"}

    def __enter__(self):
        self.rows, self.process = [], None
        self.energy, self.meter = [], energy_meter()
        try:
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=" + ",".join(self.FIELDS.values()),
                 "--format=csv,noheader,nounits", "--loop-ms=100"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.thread = threading.Thread(target=self.read, daemon=True)
            self.thread.start()
        except OSError:
            pass
        return self

    def read(self):
        for line in self.process.stdout:
            try:
                values = [float(word) for word in line.split(",")]
            except ValueError:  # "[N/A]", or words of an error
                continue
            if len(values) == len(self.FIELDS):
                self.rows.append((time.time(), values))
            joules = self.meter() if self.meter else None
            if joules is not None:
                self.energy.append((time.time(), joules))

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.thread.join()
            self.process.wait()

    def between(self, begin, end):
        """Median, lowest and highest of each field between two times; empty where there is no sample."""
        rows = [values for when, values in self.rows if begin <= when <= end]
        return {name: {"median": statistics.median(column), "lowest": min(column),
                       "highest": max(column)}
                for name, column in zip(self.FIELDS, zip(*rows))} if rows else {}

    def joules(self, begin, end):
        """The energy between two times, by the mean power between the samples in there; None without two."""
        inside = [row for row in self.energy if begin <= row[0] <= end]
        if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
            return None
        (first, low), (last, high) = inside[0], inside[-1]
        return (high - low) / (last - first) * (end - begin)


def bench_rows(bench, what):
    """What gpu_kernels_bench measures with a flag, as many rows as it wrote, and its exit status."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run([bench, what, "--json", file.name], stdout=subprocess.DEVNULL)
        try:
            rows = json.load(file)
        except ValueError:
            rows = []
    return rows, done.returncode


def milliseconds(launch, launches):
    """The mean time of PyTorch's work on a GPU, by its events."""
    import torch
    for _ in range(3):
        launch()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(launches):
        launch()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / launches


def flops_per_token(step_kernels, model):
    """As the program counts them for its own MFU."""
    done = subprocess.run([step_kernels, "--model", model, "--micro-batch", "1"], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)["flops_per_token"]


def steps_of(model):
    """How many steps a run takes: some seconds of them, so that the GPU is hot."""
    return 5 * STEPS if model == "gpt2-124m" else STEPS


def train(program, tokens, model, micro_batch, flags, seconds, sequence_length=1024):
    """Steps of bf16 training on a GPU: the median time of the last half, and what the log says beside it."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as log, Samples() as samples:
        data = [] if "--data" in flags else ["--data", tokens]
        vocabulary = ["--vocab-size", "50257"] if model.startswith("gpt2") else []
        command = [program, "train", "--no-default-config", "--device", "cuda", "--model", model, "--micro-batch", str(micro_batch),
                   "--sequence-length", str(sequence_length), "--precision", "bf16", "--steps",
                   str(steps_of(model)), "--sample-tokens", "0", "--quiet", "--parameters-hash",
                   "false", "--log", log.name, "--overwrite", *data, *vocabulary, *flags]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise NotMeasured(f"no end within {seconds:.0f} s") from error
        except subprocess.CalledProcessError as error:
            raise NotMeasured(f"{shlex.join(command)}: {error.stderr[-2000:]}") from error
        lines = [json.loads(line) for line in open(log.name)]
        steps = [line for line in lines if line["kind"] == "step"]
        steps = steps[len(steps) // 2:]
        summary = next(line for line in lines if line["kind"] == "summary")
        times = [step["seconds"] for step in steps]
        end = os.path.getmtime(log.name)  # the summary is its last line
        joules = samples.joules(end - sum(times), end)
        return {"seconds": statistics.median(times), "step_seconds": times,
                "joules": joules and joules / len(times),
                "tokens": steps[0]["tokens"], "cuda_graph": summary["cuda_graph"],
                "matmul_flops_per_second": summary["matmul_flops_per_second"],
                "copied_bytes": summary["copied_bytes"],
                "tier_copy_bytes": summary.get("tier_copy_bytes", {}).get("counted", {}),
                "peak_bytes": summary["peak_bytes"]["measured"]["total"],
                "notes": [line["text"] for line in lines if line["kind"] == "note"],
                "gpu": samples.between(end - sum(times), end)}
