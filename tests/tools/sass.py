#!/usr/bin/env python3
"""Holds what nvcc made of our kernels to kernels/src/cuda/expected_sass.json.

    sass.py MODULE            compares; 1 if anything differs, 77 if it cannot be compared here
    sass.py MODULE --accept   writes the table anew
    sass.py --predict         prints what the table predicts, per kernel

MODULE is libtessera_cuda.so. Of its images the one for the table's architecture is taken. Needs cuobjdump and
nvdisasm: on the PATH, in --tools, or in the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm of PyPI.

A row of the table, per kernel:
  registers, spill_bytes (of a thread's stack), shared_bytes (static, and what the launch adds), threads of a block,
  blocks_per_sm             that fit by registers, shared memory and threads
  ldg128, stg128, lds128    16-byte loads (cp.async included) and stores of global, loads of shared memory
  hmma                      tensor-core instructions
  loads_before_store        the most global loads of a thread under way at once, in the main loop if there is one: a
                            load is under way until an instruction needs its result, or, of cp.async, a wait for it
  bytes_in_flight_per_sm    of those loads, for all threads that fit
  predicted_bandwidth_share of the memory bandwidth, by Little's law; null of kernels with tensor cores and of those
                            that load nothing, or no more than a number

The table's "launches" say what cannot be seen in a kernel (threads, dynamic shared memory), at the sizes of GPT-2
1558M in bf16; "spills" which kernels may have how many bytes; "excluded" which kernels have no row, and why. All are regular
expressions for a kernel's name, to be edited by hand.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "kernels/src/cuda/expected_sass.json"

# Compute capability 9.0 (CUDA C++ Programming Guide, technical specifications; occupancy calculator).
REGISTERS_PER_SM, WARPS_PER_SM, BLOCKS_PER_SM = 65536, 64, 32
SHARED_PER_SM, SHARED_RESERVED, SHARED_UNIT = 228 << 10, 1 << 10, 128
REGISTER_UNIT, WARP_UNIT = 256, 4

# H200: data sheet. The latency is an estimate until a GPU has been measured: some 600 cycles of an idle H100 are
# 340 ns at 1.75 GHz, and queues about double that when memory is nearly saturated.
MULTIPROCESSORS, BANDWIDTH, LATENCY = 132, 4.8e12, 700e-9


def blocks_per_sm(registers: int, shared_bytes: int, threads: int) -> int:
    """Blocks that a multiprocessor holds at once."""
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS_PER_SM // per_warp // WARP_UNIT * WARP_UNIT // warps
    shared = -(-shared_bytes // SHARED_UNIT) * SHARED_UNIT + SHARED_RESERVED
    return min(by_registers, SHARED_PER_SM // shared, WARPS_PER_SM // warps, BLOCKS_PER_SM)


def bandwidth_share(bytes_in_flight_per_sm: int) -> float:
    """Little's law: the share of BANDWIDTH that so many bytes on their way sustain."""
    needed = BANDWIDTH * LATENCY / MULTIPROCESSORS
    return round(min(1.0, bytes_in_flight_per_sm / needed), 2)


# ---- Reading the disassembly -----------------------------------------------------------------------------------------

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
SOURCE = re.compile(r'//## File .*"(?:[^"]*/)?(\w+?)(?:_cuda)?\.cu"')
LABEL = re.compile(r"^(\.L_x_\d+):")
REGISTER = re.compile(r"\bR(\d+)\b")


class Flight:
    """The global loads of a thread that are under way."""

    def __init__(self) -> None:
        self.loads = []  # (first register, last register, bytes), oldest first
        self.copies = []  # (group, bytes)
        self.groups = 0
        self.most_loads = self.most_bytes = 0

    def need(self, registers: list) -> None:
        """Loads return in order, so older ones have arrived, too."""
        for i in range(len(self.loads) - 1, -1, -1):
            first, last, _ = self.loads[i]
            if any(first <= r <= last for r in registers):
                del self.loads[:i + 1]
                return

    def step(self, opcode: str, operands: str) -> None:
        name = opcode.split(".")[0]
        if size := load_bytes(opcode):
            self.need([int(r) for r in REGISTER.findall(operands)])
            if name == "LDGSTS":
                self.copies.append((self.groups, size))
            elif match := REGISTER.match(operands):
                first = int(match[1])
                self.loads.append((first, first + max(size // 4, 1) - 1, size))
            self.most_loads = max(self.most_loads, len(self.loads) + len(self.copies))
            self.most_bytes = max(self.most_bytes, sum(b for _, _, b in self.loads) + sum(b for _, b in self.copies))
            return
        if name == "LDGDEPBAR":
            self.groups += 1
        elif name == "DEPBAR" and (match := re.search(r"SB\d, 0x([0-9a-f]+)", operands)):
            self.copies = [copy for copy in self.copies if copy[0] >= self.groups - int(match[1], 16)]
        self.need([int(r) for r in REGISTER.findall(operands)])


def load_bytes(opcode: str) -> int:
    """Of one thread, of a global load; 0 of another instruction."""
    name, *modifiers = opcode.split(".")
    if name not in ("LDG", "LDGSTS"):
        return 0
    sizes = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    return next((sizes[m] for m in modifiers if m in sizes), 4)


def main_loop(code: list) -> list:
    """The loop that loads most, if its loads are as wide as any in the code: tails go element by element. Else all."""
    labels = {label: i for i, (_, _, _, names) in enumerate(code) for label in names}
    sizes = [load_bytes(opcode) for _, opcode, _, _ in code]
    loops = []
    for i, (_, opcode, operands, _) in enumerate(code):
        target = re.search(r"\.L_x_\d+", operands) if opcode.startswith("BRA") else None
        begin = labels.get(target[0], i + 1) if target else i + 1
        if begin <= i and max(sizes[begin:i + 1]) == max(sizes) > 0:
            loops.append((sum(sizes[begin:i + 1]), begin - i, begin, i + 1))
    return code[max(loops)[2]:max(loops)[3]] if loops else code


def loads_in_flight(code: list) -> tuple:
    """The most global loads under way at once, and their bytes, in code of (predicate, opcode, operands, labels)."""
    body, flight = main_loop(code), Flight()
    # What is under way at the end of a loop still is at its beginning. More turns fill a queue of copies.
    queue = any(opcode.startswith("DEPBAR") for _, opcode, _, _ in body)
    for _ in range(1 if body is code else 16 if queue else 2):
        for i, (predicate, opcode, operands, _) in enumerate(body):
            flight.step(opcode, operands)
            if opcode.split(".")[0] in ("BRA", "EXIT", "RET") and not predicate and i + 1 < len(body):
                flight.loads.clear()  # what follows is reached from elsewhere
    return flight.most_loads, flight.most_bytes


def read_cubin(text: str) -> dict:
    """mangled name -> {registers, spill_bytes, static_shared, threads, code, source} from what nvdisasm printed.

    The source is the .cu file, without _cuda.cu, that lines of the code come from: a name has that of the compilation
    unit, which may be of several.
    """
    kernels, section, attribute, words = {}, "", "", []

    def kernel(name: str) -> dict:
        return kernels.setdefault(name, {"registers": 0, "spill_bytes": 0, "static_shared": 0, "threads": 0, "code": [],
                                         "source": ""})

    labels = []
    for line in text.splitlines():
        if line.startswith("//-----"):
            section, attribute, words, labels = line.split()[1], "", [], []
        elif section.startswith(".text."):
            if match := LABEL.match(line):
                labels.append(match[1])
            elif match := INSTRUCTION.match(line):
                kernel(section[6:])["code"].append((match[1], match[2], match[3], labels))
                labels = []
            elif match := SOURCE.search(line):
                kernel(section[6:])["source"] = match[1]
        elif section.startswith(".nv.shared."):
            if match := re.match(r"\s*\.zero\s+(\d+)", line):
                kernel(section[11:])["static_shared"] += int(match[1])
        elif match := re.search(r"nvinfo : EIATTR_(\w+)", line):
            attribute, words = match[1], []
        elif match := re.search(r"\.word\s+(?:index@\((.*)\)|0x([0-9a-f]+))", line):
            words.append(match[1] or int(match[2], 16))
            if section == ".nv.info" and len(words) == 2 and attribute in ("REGCOUNT", "MIN_STACK_SIZE"):
                kernel(words[0])["registers" if attribute == "REGCOUNT" else "spill_bytes"] = words[1]
            if section.startswith(".nv.info.") and attribute == "MAX_THREADS" and len(words) == 3:
                kernel(section[9:])["threads"] = words[0] * words[1] * words[2]
    return {name: k for name, k in kernels.items() if k["code"]}


def short_names(kernels: dict) -> dict:
    """mangled name -> source/kernel<template arguments>, without namespaces and parameters, of read_cubin's."""
    result = subprocess.run(["c++filt"], input="\n".join(kernels), capture_output=True, text=True, check=True)
    names = {}
    for (name, kernel), full in zip(kernels.items(), result.stdout.splitlines()):
        depth = 0
        for i, char in enumerate(full):  # the parameters begin at the first ( outside of <> that names no namespace
            depth += {"<": 1, ">": -1}.get(char, 0)
            if char == "(" and depth == 0 and not full.startswith("(anonymous namespace)", i):
                full = full[:i]
                break
        full = re.sub(r"\(anonymous namespace\)::|tessera::(cuda::|simt::)?|^void ", "", full)
        full = full.replace("__nv_bfloat16", "bf16").replace("__half", "fp16")
        full = full.replace("(bool)0", "false").replace("(bool)1", "true")
        full = re.sub(r"\((?:int|unsigned int|[\w:]+)\)(?=-?\d)", "", full)
        names[name] = f"{kernel['source']}/{full}" if kernel["source"] else full
    return names


def find_tool(name: str, folder: str) -> str:
    """Its path, or an empty text."""
    candidates = [Path(folder, name)] if folder else []
    if on_path := shutil.which(name):
        candidates.append(Path(on_path))
    candidates += [Path(p, "nvidia/cu13/bin", name) for p in sys.path]
    for candidate in candidates:
        if candidate.is_file():
            candidate.chmod(0o755) if not os.access(candidate, os.X_OK) else None  # wheels forget the bit
            return str(candidate)
    return ""


def read_module(module: str, tools: str, architecture: str) -> dict:
    """short name -> what read_cubin says, of the module's images for the architecture."""
    cuobjdump, nvdisasm = find_tool("cuobjdump", tools), find_tool("nvdisasm", tools)
    if not cuobjdump or not nvdisasm:
        print("cuobjdump and nvdisasm are not here: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
        sys.exit(77)
    kernels = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([cuobjdump, "-xelf", "all", str(Path(module).resolve())], cwd=folder, check=True,
                       capture_output=True)
        for cubin in sorted(Path(folder).glob(f"*.{architecture}.cubin")):
            text = subprocess.run([nvdisasm, "-gi", str(cubin)], capture_output=True, text=True, check=True).stdout
            kernels.update(read_cubin(text))
    if not kernels:
        print(f"{module} has no image for {architecture}")
        sys.exit(77)
    names = short_names(kernels)
    result = {}
    for mangled, kernel in kernels.items():
        assert names[mangled] not in result, f"two kernels are called {names[mangled]}"
        result[names[mangled]] = kernel
    return result


def row_of(name: str, kernel: dict, launches: list) -> dict:
    threads, shared = kernel["threads"], kernel["static_shared"]
    for launch in launches:
        if re.search(launch["kernel"], name):
            threads = launch.get("threads", threads)
            shared += launch.get("dynamic_shared_bytes", 0)
    assert threads, f"{name}: neither __launch_bounds__ nor \"launches\" in {TABLE.name} give its threads"
    code = kernel["code"]

    def count(pattern: str) -> int:
        return sum(bool(re.match(pattern, opcode)) for _, opcode, _, _ in code)

    blocks = blocks_per_sm(kernel["registers"], shared, threads)
    loads, bytes_of_loads = loads_in_flight(code)
    in_flight = bytes_of_loads * threads * blocks
    ldg128, stg128, hmma = count(r"(LDG|LDGSTS)\..*\b128\b"), count(r"STG\..*\b128\b"), count(r"HMMA|HGMMA")
    streams = in_flight and not hmma and (bytes_of_loads > 4 or not stg128)
    return {
        "registers": kernel["registers"],
        "spill_bytes": kernel["spill_bytes"],
        "shared_bytes": shared,
        "threads": threads,
        "blocks_per_sm": blocks,
        "ldg128": ldg128,
        "stg128": stg128,
        "lds128": count(r"LDS\..*\b128\b"),
        "hmma": hmma,
        "loads_before_store": loads,
        "bytes_in_flight_per_sm": in_flight,
        "predicted_bandwidth_share": bandwidth_share(in_flight) if streams else None,
    }


# ---- The table -------------------------------------------------------------------------------------------------------


def load_table(path=TABLE) -> dict:
    return json.loads(Path(path).read_text())


def save_table(table: dict, path=TABLE) -> None:
    """One line for each row, so that a change is one line of a diff."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            rows = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(value.items())]
            lines.append(f"  {json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n  }")
        elif isinstance(value, list):
            lines.append(f"  {json.dumps(key)}: [\n" + ",\n".join(f"    {json.dumps(v)}" for v in value) + "\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def differences(old: dict, new: dict) -> list:
    """Lines that say how rows differ."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            lines.append(f"{name}: is gone")
        elif name not in old:
            lines.append(f"{name}: is new: {json.dumps(new[name])}")
        else:
            changes = [f"{key} {old[name].get(key)} -> {value}" for key, value in new[name].items()
                       if old[name].get(key) != value]
            if changes:
                lines.append(f"{name}: {', '.join(changes)}")
    return lines


def faults(kernels: dict, table: dict) -> list:
    """What no row can accept: spills that are not named, entries that fit no kernel."""
    lines = []
    for name, kernel in sorted(kernels.items()):
        if kernel["spill_bytes"] > max((s["bytes"] for s in table["spills"] if re.search(s["kernel"], name)), default=0):
            lines.append(f"{name}: {kernel['spill_bytes']} bytes of a thread's stack; keep it in registers, or name it "
                         f"under \"spills\" in {TABLE.name}")
    for key in ("launches", "spills", "excluded"):
        for entry in table[key]:
            if not any(re.search(entry["kernel"], name) for name in kernels):
                lines.append(f"\"{key}\" in {TABLE.name}: no kernel is called {entry['kernel']}")
    return lines


def print_prediction(table: dict) -> None:
    print(f"{'kernel':64} {'regs':>4} {'blocks':>6} {'loads':>5} {'KiB/SM':>7} {'of bandwidth':>12}")
    for name, row in sorted(table["kernels"].items()):
        share = row["predicted_bandwidth_share"]
        print(f"{name[:64]:64} {row['registers']:4} {row['blocks_per_sm']:6} {row['loads_before_store']:5} "
              f"{row['bytes_in_flight_per_sm'] / 1024:7.1f} {'-' if share is None else f'{share:.0%}':>12}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="?", help="libtessera_cuda.so")
    parser.add_argument("--accept", action="store_true", help="write the table anew")
    parser.add_argument("--predict", action="store_true", help="print what the table predicts")
    parser.add_argument("--compiler", default="", help="the version of nvcc that made the module")
    parser.add_argument("--tools", default="", help="the folder of cuobjdump and nvdisasm")
    options = parser.parse_args()
    table = load_table()
    if options.predict:
        print_prediction(table)
        return 0
    if not options.module:
        parser.error("which module?")
    if options.accept:
        table["compiler"] = options.compiler or table["compiler"]
    elif options.compiler and options.compiler != table["compiler"]:
        print(f"the table is of nvcc {table['compiler']}, this is {options.compiler}")
        return 77
    kernels = read_module(options.module, options.tools, table["architecture"])
    rows = {name: row_of(name, kernel, table["launches"]) for name, kernel in kernels.items()
            if not any(re.search(e["kernel"], name) for e in table["excluded"])}
    changes, wrong = differences(table["kernels"], rows), faults(kernels, table)
    print("\n".join(changes + wrong) or f"{len(rows)} kernels are as expected, {len(kernels) - len(rows)} excluded")
    if options.accept and changes:
        table["kernels"] = rows
        save_table(table)
        print(f"{TABLE} is written; it takes {len(changes)} changes")
    elif changes:
        print(f"{len(changes)} kernels differ from {TABLE.name}: to accept that, run\n  {sys.argv[0]} {options.module} --accept")
    return 1 if wrong or (changes and not options.accept) else 0


if __name__ == "__main__":
    sys.exit(main())
