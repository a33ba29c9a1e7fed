#!/usr/bin/env python3
"""ctest_report.py on what ctest itself says of tests that pass, fail, hang, crash and are skipped."""
import os
import pty
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ctest_report

TOOL = Path(ctest_report.__file__)
LONG = "kernels/Gemm.EqualsTheTripleLoop<tessera::gemm_test::(anonymous namespace)::Types<" + "tessera::bfloat16, " * 8
OUTPUTS = {  # by name: what a test writes, its exit status, and its properties
    "core/Passes.Quickly": ("[ RUN      ] Passes.Quickly\n", 0, ""),
    "core/Fails.AtTwoPlaces": (
        "[ RUN      ] Fails.AtTwoPlaces\nnoise\n"
        f"{ctest_report.ROOT}/tests/core/fails_test.cpp:12: Failure\nExpected equality of these values:\n  1\n  2\n\n"
        f"{ctest_report.ROOT}/tests/core/fails_test.cpp:14: Failure\nValue of: late\n\n"
        "[  FAILED  ] Fails.AtTwoPlaces (0 ms)\n", 1, ""),
    "tools/fails_without_gtest": ("one\ntwo\nthe reason\n", 3, ""),
    "core/Skips.WithAReason": (
        "x_test.cpp:3: Skipped\nneeds a GPU\nof two\n\n[  SKIPPED ] Skips.WithAReason (0 ms)\n", 0,
        'SKIP_REGULAR_EXPRESSION "SKIPPED"'),
    "tools/skips": ("first\nthere is no compiler\n", 77, "SKIP_RETURN_CODE 77"),
    LONG: ("", 0, ""),
}


def text_without_escapes(data):
    return data.decode().replace("\r\n", "\n")


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        root = Path(cls.folder.name)
        script = []
        for number, (name, (output, status, properties)) in enumerate(OUTPUTS.items()):
            (root / f"{number}.txt").write_text(output)
            script.append(f'add_test([=[{name}]=] sh -c "cat {root}/{number}.txt; exit {status}")')
            script.append(f"set_tests_properties([=[{name}]=] PROPERTIES {properties or 'COST 1'})")
        (root / "CTestTestfile.cmake").write_text("\n".join(script))
        cls.junit = root / "ctest.xml"
        cls.raw = subprocess.run(
            ["ctest", "--test-dir", root, "--output-junit", cls.junit, "--test-output-size-passed", "20000"],
            capture_output=True, check=False).stdout

    def watched(self, width):
        """As a log, and on a terminal."""
        environment = os.environ | {"COLUMNS": str(width)}
        log = subprocess.run([sys.executable, TOOL, "watch"], input=self.raw, capture_output=True, check=True,
                             env=environment).stdout
        reader, writer = pty.openpty()
        shown = subprocess.Popen([sys.executable, TOOL, "watch"], stdin=subprocess.PIPE, stdout=writer, env=environment)
        os.close(writer)
        shown.stdin.write(self.raw)
        shown.stdin.close()
        terminal = b""
        try:
            while chunk := os.read(reader, 4096):
                terminal += chunk
        except OSError:  # Linux says so at the end
            pass
        os.close(reader)
        self.assertEqual(shown.wait(), 0)
        return text_without_escapes(log), text_without_escapes(terminal)

    def summary(self, width, *arguments):
        return subprocess.run([sys.executable, TOOL, "summary", *arguments], capture_output=True, check=True, text=True,
                              env=os.environ | {"COLUMNS": str(width)}).stdout

    def test_no_line_is_wider_than_the_terminal(self):
        log, terminal = self.watched(80)
        summary = self.summary(80, f"release,60,30,{self.junit}")
        for line in (log + summary).splitlines():
            self.assertLessEqual(len(line), 80, line)
        for line in terminal.replace("\r\033[K", "\n").splitlines():
            self.assertLessEqual(len(line), 80, line)

    def test_a_log_has_a_line_for_each_test(self):
        log, _ = self.watched(120)
        self.assertRegex(log, r"\d/6 +[0-9.]+ s  core/Passes.Quickly\n")
        self.assertRegex(log, r"\d/6 +[0-9.]+ s  core/Fails.AtTwoPlaces  Failed\n")
        self.assertRegex(log, r"\d/6 +[0-9.]+ s  core/Skips.WithAReason  Skipped\n")
        self.assertIn("tests passed, 2 tests failed out of 6", log)
        self.assertNotIn("The following tests", log)

    def test_a_terminal_has_one_line_that_is_written_over(self):
        _, terminal = self.watched(80)
        self.assertEqual(terminal.count("failed: core/Fails.AtTwoPlaces"), 1)
        self.assertNotIn("core/Passes.Quickly", terminal)
        self.assertIn("\r\033[Ktested 6 of 6 in 0:00, 2 skipped, 2 failed", terminal)

    def test_the_summary_counts_and_gives_reasons(self):
        summary = self.summary(100, "packages,6,0", f"release,60,30,{self.junit}")
        self.assertRegex(summary, r"packages +0\.1 +0\.0 +0 +0 +0\n")
        self.assertRegex(summary, r"release +1\.0 +0\.5 +2 +2 +2\n")
        self.assertRegex(summary, r"together +1\.1 +0\.5 +2 +2 +2\n")
        self.assertRegex(summary, r"1  needs a GPU of two.*\n +core/Skips.WithAReason")
        self.assertRegex(summary, r"1  there is no compiler.*\n +tools/skips")

    def test_failures_come_last_with_their_assertions_and_how_to_run_them(self):
        summary = self.summary(100, f"release,60,30,{self.junit}")
        last = summary[summary.index("Failed: 2"):]
        self.assertLess(len(last.splitlines()), 24)
        self.assertIn("tests/core/fails_test.cpp:12: Failure\n    Expected equality", last)
        self.assertIn("    tests/core/fails_test.cpp:14: Failure\n    Value of: late", last)
        self.assertNotIn("noise", last)
        self.assertIn(r"alone: ./run test -R '^core/Fails\.AtTwoPlaces$'", last)
        self.assertIn("    the reason\n", last)
        self.assertEqual(last.strip().splitlines()[-1].strip(), "alone: ./run test -R '^tools/fails_without_gtest$'")

    def test_many_failures_fit_a_screen_or_are_named(self):
        tests = [ctest_report.Test("asan", f"core/A.B{i}", 1, "failed", "Timeout", "a\nb\nc\nd\n") for i in range(30)]
        lines = list(ctest_report.failures([ctest_report.Stage("asan", 0, 0, tests)], 80, 0))
        self.assertIn("    timeout after 1.0 s (asan)", lines)
        self.assertIn("  core/A.B29 (asan)", lines)
        self.assertIn(r"    alone: ./run test --asan -R '^core/A\.B0$'", lines)

    def test_what_only_ci_runs_is_said(self):
        left_out = Path(self.folder.name) / "left_out"
        left_out.write_text("tools/verify\ninstall/headers\n")
        summary = self.summary(100, f"release,60,30,{self.junit},{left_out}")
        self.assertRegex(summary, r"2  only in ./run test --ci\n +tools/verify\n +install/headers")


if __name__ == "__main__":
    unittest.main()
