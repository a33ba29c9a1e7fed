"""What the tests of the Python package share: the program beside it, and skipping."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["TESSERA_SOURCE_DIR"])
PROGRAM = os.environ["TESSERA_PROGRAM"]
ALICE = SOURCE / "tests" / "text" / "alice.txt"

#: A run that takes a second.
SMALL = {
    "model": "gpt2-tiny",
    "layers": 2,
    "sequence_length": 32,
    "micro_batch": 2,
    "ranks": 2,
    "steps": 6,
    "device": "cpu",
}


def need(*modules):
    """Ends the test as skipped, with the reason, where a module is not installed."""
    for module in modules:
        try:
            __import__(module)
        except ImportError as missing:
            print(f"skipped: {missing}; pip install {module}")
            sys.exit(77)


def flags(settings):
    """The settings as the program's flags."""
    words = []
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ["--" + name.replace("_", "-"), text]
    return words


def run_program(command, settings, *more):
    """What the program prints."""
    words = [PROGRAM, command, *flags(settings), *more]
    if command in ("train", "plan", "simulate", "evaluate"):
        words.insert(2, "--no-default-config")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{words} failed:\n{done.stderr}")
    return done.stdout


def lines_of(log):
    """The lines of a run's log."""
    return [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]


def train(settings, folder, name="program.jsonl"):
    """The lines of the log of a run of the program."""
    log = pathlib.Path(folder) / name
    run_program("train", {**settings, "log": log, "quiet": True, "sample_tokens": 0})
    return lines_of(log)


class FolderTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


def main():
    """Runs the tests of the file; a signal's default handler is Python's, as in a terminal."""
    unittest.main(verbosity=2)
