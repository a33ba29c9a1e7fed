#!/usr/bin/env python3
"""Which sources these are: what programs and measurements belong to.

    sources.py          prints the SHA-256 of all that is compiled
"""

import functools
import hashlib
import os
import subprocess

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDERS = ["bench", "collectives", "kernels", "model", "runtime", "tests", "third_party"]
COMPILED = (".cpp", ".h", ".cu", ".cmake", ".in", "CMakeLists.txt")


@functools.cache
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


def content_of(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def revision(folder):
    """Of programs that carry.sh brought to this folder, if they are of these sources; else by git.

    Where programs are carried to, the tree may have no history, or another's.
    """
    carried = content_of(os.path.join(folder, "REVISION"))
    if content_of(os.path.join(folder, "prebuilt", "SOURCES")) == sources_sha256():
        return carried
    try:
        described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"],
                                   capture_output=True, text=True, cwd=REPOSITORY).stdout.strip()
    except OSError:
        described = ""
    return described or carried


if __name__ == "__main__":
    print(sources_sha256())
