#!/usr/bin/env python3
"""The stub of the extension says what the extension has, and the package's annotations hold: mypy judges both."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

support.need("numpy", "ml_dtypes", "mypy")

PROGRAM = """
import numpy as np
import tessera

plan: tessera.Plan = tessera.plan(model="gpt2-tiny", ranks=2)
first: str = plan.schedule.actions[0].operation
with tessera.Session([np.zeros(257, np.int32)], steps=1) as session:
    for record in session:
        loss: float = record.loss
    weights = session.parameters()["wte.weight"].astype(np.float64)
    bits = session.state()["h.0.parameter"].array.dtype
"""


# pybind11's classes have a metaclass of its own, and before Python 3.12 a buffer has no method.
CLASSES = ("EvaluationRecord", "FullParameter", "HeldTensor", "Schedule", "Session", "StepRecord")
PYBIND11 = "".join(
    [f"tessera._core.{name}\n" for name in CLASSES]
    + [f"tessera._core.{name}.__init__\n" for name in CLASSES if name not in ("Schedule", "Session")]
    + [f"tessera._core.{name}.__buffer__\n" for name in ("FullParameter", "HeldTensor")]
)


class StubsTest(unittest.TestCase):
    def run_tool(self, *words):
        package = pathlib.Path(os.environ["PYTHONPATH"])
        done = subprocess.run([sys.executable, "-m", *map(str, words)], capture_output=True, text=True,
                              env={**os.environ, "MYPYPATH": str(package), "PYTHONPATH": str(package)},
                              cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_the_stub_is_the_extension(self):
        allowed = pathlib.Path(self.folder) / "allowed"
        allowed.write_text(PYBIND11)
        self.run_tool("mypy.stubtest", "tessera._core", "--ignore-missing-stub", "--ignore-disjoint-bases",
                      "--allowlist", allowed)

    def test_the_package_is_typed(self):
        program = pathlib.Path(self.folder) / "program.py"
        program.write_text(PROGRAM)
        self.run_tool("mypy", "--strict", "--ignore-missing-imports", program)  # and what it imports


if __name__ == "__main__":
    support.main()
