#!/usr/bin/env python3
"""Which sources these are: what programs and measurements belong to.

    sources.py          prints the SHA-256 of all that is compiled
"""

import hashlib
import os
import subprocess

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDERS = ["bench", "collectives", "kernels", "model", "runtime", "tests", "third_party"]
COMPILED = (".cpp", ".h", ".cu", ".cmake", ".in", "CMakeLists.txt")


def sources_sha256():
    """Of the names and contents of all files that programs are built from."""
    paths = [os.path.join(REPOSITORY, "CMakeLists.txt")]
    for top in FOLDERS:
        for folder, folders, files in os.walk(os.path.join(REPOSITORY, top)):
            folders.sort()
            paths += [os.path.join(folder, name) for name in sorted(files) if name.endswith(COMPILED)]
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.path.relpath(path, REPOSITORY).encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def revision(carried):
    """By git, or as the file `carried` says where the tree came without its history."""
    try:
        described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"],
                                   capture_output=True, text=True, cwd=REPOSITORY).stdout.strip()
    except OSError:
        described = ""
    if not described and carried and os.path.exists(carried):
        with open(carried) as file:
            described = file.read().strip()
    return described


if __name__ == "__main__":
    print(sources_sha256())
