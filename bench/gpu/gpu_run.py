"""What the scripts that measure on a GPU share: runs of tessera, with clocks and power beside them."""

import json
import os
import shlex
import statistics
import subprocess
import tempfile
import threading
import time

PEAK = 989e12  # dense bf16 of an H100 or H200 SXM, by its data sheet
STEPS, WARMUP_STEPS = 10, 4


class NotMeasured(Exception):
    pass


def write_json(path, value):
    """At once: a reader finds the old file or the new one."""
    with open(path + ".new", "w") as file:
        json.dump(value, file, indent=2)
    os.replace(path + ".new", path)


class Samples:
    """The GPU's clocks, power and temperature while a block runs, by nvidia-smi; none without it."""

    FIELDS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "watts": "power.draw",
              "celsius": "temperature.gpu"}

    def __enter__(self):
        self.rows, self.process = [], None
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


def flops_per_token(step_kernels, model):
    """As the program counts them for its own MFU."""
    done = subprocess.run([step_kernels, "--model", model, "--micro-batch", "1"], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)["flops_per_token"]


def train(program, tokens, model, micro_batch, flags, seconds, sequence_length=1024):
    """A few steps of bf16 training on a GPU: their median time, and what the log says beside it."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as log, Samples() as samples:
        command = [program, "train", "--no-default-config", "--device", "cuda", "--data", tokens,
                   "--model", model, "--vocab-size", "50257", "--micro-batch", str(micro_batch),
                   "--sequence-length", str(sequence_length), "--precision", "bf16", "--steps",
                   str(WARMUP_STEPS + STEPS), "--sample-tokens", "0", "--quiet", "--parameters-hash",
                   "false", "--log", log.name, "--overwrite", *flags]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise NotMeasured(f"no end within {seconds:.0f} s") from error
        except subprocess.CalledProcessError as error:
            raise NotMeasured(f"{shlex.join(command)}: {error.stderr[-2000:]}") from error
        lines = [json.loads(line) for line in open(log.name)]
        steps = [line for line in lines if line["kind"] == "step"][WARMUP_STEPS:]
        summary = next(line for line in lines if line["kind"] == "summary")
        times = [step["seconds"] for step in steps]
        end = os.path.getmtime(log.name)  # the summary is its last line
        return {"seconds": statistics.median(times), "step_seconds": times,
                "tokens": steps[0]["tokens"], "cuda_graph": summary["cuda_graph"],
                "matmul_flops_per_second": summary["matmul_flops_per_second"],
                "copied_bytes": summary["copied_bytes"],
                "tier_copy_bytes": summary.get("tier_copy_bytes", {}).get("counted", {}),
                "peak_bytes": summary["peak_bytes"]["measured"]["total"],
                "notes": [line["text"] for line in lines if line["kind"] == "note"],
                "gpu": samples.between(end - sum(times), end)}
