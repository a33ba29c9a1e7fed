#!/usr/bin/env python3
"""Finds the modules in which files changed since their tests last passed, for `./run test --changed`.

    changed.py fingerprints             what the files of each module are now, as JSON
    changed.py list RECORD              modules that differ from the record, one a line
    changed.py keep RECORD FINGERPRINTS JUNIT [MODULE…]
                                        enters modules into the record whose tests all passed: of the
                                        given ones, or of all; and takes out those of which one failed

A module's tests have its name as their label and at the beginning of their own names, and its CMake target
tests_of_<module> builds them. A change of what all tests share (CMake files, `run`, tests/support) is a
change of every module.
"""

import hashlib
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "collectives", "kernels", "model", "runtime", "tests", "third_party")

# What makes a file everybody's. Scripts of CMake in tests/install and tests/layers are tests themselves.
SHARED = re.compile(
    r"(run|CMakePresets\.json|(?!tests/(install|layers)/).*(CMakeLists\.txt|\.cmake(\.in)?)"
    r"|third_party/.*|tests/(support|text)/.*|tests/[^/]*\.h)$"
)
EMULATED = r"|tests/emulator(_\w+)?/"
# The files of each module: its sources, its tests, and the emulator if its tests run on that.
MODULES = {
    "autograd": r"(runtime|tests)/autograd/",
    "bench": r"bench/(?!gpu/)|bench/gpu/(step_kernels|report)\.",
    "checkpoint": r"(runtime|tests)/checkpoint/",
    "cli": r"(runtime|tests)/cli/|README\.md$",
    "collectives": r"(tests/)?collectives/" + EMULATED,
    "configs": r"runtime/compat/|tests/configs/|README\.md$",
    "core": r"(runtime|tests)/core/",
    "cuda": r".*(_cuda\.\w+|\.cu|/cuda/.*)$" + EMULATED,
    "cudnn": r"kernels/src/cuda/.*cudnn|collectives/src/nccl/nccl_library|tests/cudnn/",
    "emulator": r"tests/emulator/",
    "emulator_blas": r"kernels/src/cuda/|tests/emulator(_blas)?/",
    "install": r"tests/install/|runtime/embed/",
    "kernels": r"(tests/)?kernels/" + EMULATED,
    "lab": r"(runtime|tests)/lab/",
    "layers": r".*\.(h|cpp|cu)$|tests/layers/",
    "model": r"(tests/)?model/",
    "mpi": r"(tests/)?collectives/|tests/mpi/",
    "python": r"(runtime|tests)/python/|runtime/cli/",
    "sharding": r"(runtime|tests)/sharding/",
    "tools": r"tests/tools/|bench/gpu/",
    "trainer": r"(runtime|tests)/trainer/",
}


def files_of_tree():
    """Files of the sources, without what a run of Python leaves."""
    yield from (path.name for path in ROOT.iterdir() if path.is_file())
    for top in FOLDERS:
        for folder, folders, names in os.walk(ROOT / top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (str(Path(folder, name).relative_to(ROOT)) for name in names if not name.endswith(".pyc"))


def modules_of(path):
    if SHARED.match(path):
        return list(MODULES)
    return [module for module, pattern in MODULES.items() if re.match(pattern, path)]


def fingerprints():
    hashes = {module: hashlib.sha256() for module in MODULES}
    for path in sorted(files_of_tree()):
        modules = modules_of(path)
        if not modules:
            continue
        content = hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
        for module in modules:
            hashes[module].update(f"{path} {content}\n".encode())
    return {module: digest.hexdigest() for module, digest in hashes.items()}


def read_record(path):
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError):
        return {}


def changed(record, now):
    return [module for module, fingerprint in now.items() if record.get(module) != fingerprint]


def module_of_test(name):
    """kernels_emulated/… and kernels_on_avx2/… are tests of kernels, as collectives_nccl/… are of collectives."""
    program = name.split("/")[0]
    return next((m for m in (program, program.split("_")[0]) if m in MODULES), program)


def keep(record_path, fingerprint_path, junit, modules):
    had, failed = set(), set()
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        module = module_of_test(case.get("name"))
        had.add(module)
        if case.find("failure") is not None or case.get("status") == "fail" or "_NOT_BUILT" in case.get("name"):
            failed.add(module)
    record, tested = read_record(record_path), read_record(fingerprint_path)
    for module in MODULES:
        if module in failed:
            record.pop(module, None)
        elif module in had and module in (modules or MODULES):
            record[module] = tested[module]
    Path(record_path).write_text(json.dumps(record, indent=1))


def main(arguments):
    match arguments:
        case ["fingerprints"]:
            print(json.dumps(fingerprints()))
        case ["list", record]:
            for module in changed(read_record(record), fingerprints()):
                print(module)
        case ["keep", record, tested, junit, *modules]:
            keep(record, tested, junit, modules)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
