#!/usr/bin/env python3
"""Which modules changed.py takes for changed, on a tree of its own; and that it knows every module there is."""
import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

import changed

JUNIT = """<testsuite>
  <testcase name="core/A.B" status="run"/>
  <testcase name="kernels_emulated/A.B" status="fail"><failure message="Failed"/></testcase>
  <testcase name="kernels/A.B" status="run"/>
  <testcase name="tools/d" status="notrun"><skipped message="x"/></testcase>
  <testcase name="emulator_blas/A.B" status="run"/>
</testsuite>"""


class Modules(unittest.TestCase):
    def test_a_source_is_of_its_module_and_of_the_check_of_layers(self):
        self.assertEqual(changed.modules_of("runtime/sharding/src/order.cpp"), ["layers", "sharding"])
        self.assertEqual(changed.modules_of("tests/lab/trace_test.cpp"), ["lab", "layers"])
        self.assertEqual(changed.modules_of("runtime/compat/README.md"), ["configs"])

    def test_a_cuda_source_is_tested_in_whole_steps_too(self):
        self.assertEqual(changed.modules_of("runtime/core/src/stream_cuda.cpp"), ["core", "cuda", "layers"])
        self.assertIn("kernels", changed.modules_of("kernels/src/cuda/swiglu_cuda.cu"))
        self.assertIn("cuda", changed.modules_of("kernels/src/cuda/swiglu_cuda.cu"))

    def test_what_all_share_is_of_every_module(self):
        for path in ("run", "CMakeLists.txt", "CMakePresets.json", "tests/support/small_run.h",
                     "runtime/sharding/CMakeLists.txt", "tests/temporary_folder.h", "third_party/cuda.cmake"):
            self.assertEqual(changed.modules_of(path), list(changed.MODULES), path)
        self.assertEqual(changed.modules_of("tests/install/run.cmake"), ["install"])

    def test_each_folder_of_sources_and_of_tests_is_of_a_module(self):
        for path in changed.files_of_tree():
            if path.endswith((".cpp", ".h", ".cu")):
                self.assertTrue(set(changed.modules_of(path)) - {"layers"}, path)
        for folder in (changed.ROOT / "tests").iterdir():
            if folder.is_dir() and any(folder.glob("*_test.cpp")):
                self.assertIn(folder.name, changed.MODULES)


class Record(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = Path(self.folder.name)
        (root / "runtime/core").mkdir(parents=True)
        (root / "kernels").mkdir()
        (root / "runtime/core/a.cpp").write_text("int a;")
        (root / "kernels/k.cpp").write_text("int k;")
        (root / "run").write_text("#!/bin/sh")
        self.root, self.saved = root, changed.ROOT
        changed.ROOT = root
        self.addCleanup(setattr, changed, "ROOT", self.saved)

    def test_modules_that_passed_are_unchanged_until_a_file_of_theirs_is_written(self):
        record, tested, junit = (self.root / name for name in ("record", "tested", "junit"))
        junit.write_text(JUNIT)
        tested.write_text(json.dumps(changed.fingerprints()))
        self.assertEqual(changed.changed(changed.read_record(record), changed.fingerprints()), list(changed.MODULES))
        changed.keep(record, tested, junit, [])

        def differs(module):
            return module in changed.changed(changed.read_record(record), changed.fingerprints())

        self.assertFalse(differs("core"))
        self.assertFalse(differs("tools"))
        self.assertTrue(differs("kernels"))  # a test of theirs failed
        self.assertTrue(differs("lab"))  # had no test
        (self.root / "runtime/core/new.cpp").write_text("int b;")
        self.assertTrue(differs("core"))
        self.assertFalse(differs("tools"))
        (self.root / "runtime/core/new.cpp").unlink()
        self.assertFalse(differs("core"))
        (self.root / "run").write_text("#!/bin/bash")
        self.assertTrue(differs("core"))

    def test_a_module_that_was_not_asked_for_is_not_entered_but_a_failure_of_its_is(self):
        record, tested, junit = (self.root / name for name in ("record", "tested", "junit"))
        junit.write_text(JUNIT)
        now = changed.fingerprints()
        tested.write_text(json.dumps(now))
        record.write_text(json.dumps({"kernels": now["kernels"]}))
        changed.keep(record, tested, junit, ["core"])
        self.assertEqual(list(changed.read_record(record)), ["core"])

    def test_a_list_of_nothing_is_empty(self):
        (self.root / "record").write_text(json.dumps(changed.fingerprints()))
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            changed.main(["list", self.root / "record"])
        self.assertEqual(told.getvalue(), "")

    def test_a_record_that_cannot_be_read_is_none(self):
        (self.root / "record").write_text("{")
        self.assertEqual(changed.read_record(self.root / "record"), {})


if __name__ == "__main__":
    unittest.main()
