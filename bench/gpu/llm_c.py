"""llm.c from its sources: built, and its training steps timed on one GPU.

With a folder cudnn-frontend in the sources its attention is cuDNN's. bf16 with fp32 master weights and
AdamW, as its own scripts train.
"""

import array
import glob
import os
import re
import shutil
import statistics
import subprocess
import threading
import time

from gpu_run import NotMeasured, Samples, steps_of

# Its names for models that begin from random numbers: by depth.
DESCRIPTORS = {"gpt2-124m": "d12", "gpt2-350m": "d24", "gpt2-774m": "d36", "gpt2-1558m": "d48"}
DATA_MAGIC, DATA_VERSION, HEADER_INTS = 20240520, 1, 256


def write_tokens(path, count):
    """As its data loader reads them: a header of 256 integers, then 16 bits a token."""
    header = array.array("i", [DATA_MAGIC, DATA_VERSION, count] + [0] * (HEADER_INTS - 3))
    state, tokens = 1, array.array("H")
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        tokens.append((state >> 8) % 50257)
    with open(path, "wb") as file:
        file.write(header.tobytes() + tokens.tobytes())


def adapt_to_cuda_13(tree):
    """cudaMemAdvise takes a location since, not a device's number."""
    path = os.path.join(tree, "llmc", "cuda_utils.cuh")
    with open(path) as file:
        text = file.read()
    adapted = text.replace("PreferredLocation, cudaCpuDeviceId)",
                           "PreferredLocation, cudaMemLocation{cudaMemLocationTypeHost, 0})")
    with open(path, "w") as file:
        file.write(adapted)


def cuda_release():
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    return int((re.search(r"release (\d+)\.", said) or ["", "0"])[1])


def link_flags(tree, folder):
    """For cudnn-frontend and the driver's libraries: where there is no driver, CUDA has stubs to link with, of
    NVML not always; then a library stands for it that has the names which llm.c calls."""
    stubs = os.path.normpath(os.path.join(os.path.dirname(os.path.realpath(shutil.which("nvcc"))), "..", "lib64",
                                          "stubs"))
    flags = f"-lnvrtc -lcuda -L{stubs}"
    if not os.path.exists(os.path.join(stubs, "libnvidia-ml.so")):
        names = set()
        for path in glob.glob(os.path.join(tree, "llmc", "*")) + glob.glob(os.path.join(tree, "*.cu")):
            with open(path, errors="replace") as file:
                names.update(re.findall(r"\b(nvml[A-Z]\w*) *\(", file.read()))
        source = "".join(f"int {name}{version}(void) {{ return 0; }}\n"
                         for name in sorted(names) for version in ("", "_v2") if version not in name or not version)
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-x", "c", "-", "-o",
                        os.path.join(folder, "libnvidia-ml.so")], input=source, text=True, check=True)
        flags += f" -L{folder}"
    return flags


def build(source, folder, seconds):
    """The program, built in a copy, one line of which is changed for CUDA 13, unless it is built already."""
    tree = os.path.join(folder, "llm.c")
    shutil.copytree(source, tree)
    program = os.path.join(tree, "train_gpt2cu")
    if os.access(program, os.X_OK):
        return program
    if cuda_release() >= 13:
        adapt_to_cuda_13(tree)
    cudnn = os.path.isdir(os.path.join(tree, "cudnn-frontend", "include"))
    subprocess.run(["make", "train_gpt2cu", "NO_MULTI_GPU=1", "NO_USE_MPI=1", "PRECISION=BF16",
                    "GPU_COMPUTE_CAPABILITY=90", f"USE_CUDNN={int(cudnn)}"],
                   cwd=tree, check=True, timeout=seconds,
                   env={**os.environ, "NVCC_APPEND_FLAGS": link_flags(tree, folder)})
    return program


def measure(program, folder, model, micro_batch, seconds):
    """The steps of the last half of a run: their times, the median, the joules of one, and the GPU beside them."""
    tokens, steps, lines = os.path.join(folder, "tokens.bin"), steps_of(model), []
    process = subprocess.Popen(
        [program, "-i", tokens, "-j", tokens, "-e", DESCRIPTORS[model], "-b", str(micro_batch),
         "-t", "1024", "-d", str(micro_batch * 1024), "-x", str(steps), "-w", "1",
         "-r", "0", "-v", "1000", "-m", "1", "-s", "0", "-h", "0", "-l", "1e-4"],
        cwd=folder, text=True, stdout=subprocess.PIPE)
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    with Samples() as samples:
        for line in process.stdout:
            lines.append((time.time(), line))
    process.wait()
    killer.cancel()
    print("".join(line for _, line in lines)[-2000:], f"\nexit code {process.returncode}", flush=True)
    rows = [(when, float(found[1]) * 1e-3) for when, line in lines
            if (found := re.match(r"step .*\| *([0-9.]+) ms \|", line))]
    if process.returncode != 0 or len(rows) < steps:
        raise NotMeasured(f"exit code {process.returncode} after {len(rows)} steps")
    rows = rows[steps // 2:]
    begin, end = rows[0][0], rows[-1][0]
    joules = samples.joules(begin, end)
    times = [seconds for _, seconds in rows]
    return {"step_seconds": times, "seconds": statistics.median(times),
            "joules": joules and joules / (len(rows) - 1), "gpu": samples.between(begin, end)}
