#!/usr/bin/env python3
"""Shows a run of ctest while it goes on, and what it came to.

    ctest … | ctest_report.py watch
        On a terminal one line that is written over, and one for each test that fails; else a line for
        each test, no wider than the terminal.

    ctest_report.py summary [--failure-lines N] STAGE…
        STAGE is NAME,BUILD_SECONDS,TEST_SECONDS[,JUNIT[,LEFT_OUT]]: a table of minutes, the longest
        tests, what was skipped and why, and each failed test with its reason and how to run it alone.
        LEFT_OUT is a file with names of tests that only CI runs.
"""

import os
import re
import shutil
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 10
FAILURES_SHOWN = 12  # with their reasons; of the others the names
RESULT = re.compile(r"^ *(\d+)/(\d+) +Test +#\d+: (.*?) \.*(\*\*\*| {2,})(.+?) +([0-9.]+) sec *$")


def columns():
    """A log that is no terminal has room, unless COLUMNS says how much."""
    return shutil.get_terminal_size((120, 24)).columns


def plain_name(name):
    """Without the namespaces of types."""
    return re.sub(r"\(anonymous namespace\)::|tessera::(\w+_test::)?|std::", "", name)


def fitted(text, width):
    """With what does not fit left out of its middle."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


# ---- While it runs -------------------------------------------------------------------------------


class Watch:
    def __init__(self, out=sys.stdout):
        self.out = out
        self.calm = out.isatty()
        self.begin = time.monotonic()
        self.failed = self.skipped = 0
        self.line_open = False
        self.hidden = False  # within ctest's list of failed tests, which the summary has

    def write(self, text):
        if self.line_open:
            self.out.write("\r\033[K")
            self.line_open = False
        self.out.write(text + "\n")

    def result(self, number, total, name, status, seconds):
        passed, skipped = status == "Passed", status in ("Skipped", "Not Run (Disabled)")
        self.skipped += skipped
        self.failed += not (passed or skipped)
        status = status.strip("*")
        if not self.calm:
            head = f"{number:>{len(total)}}/{total} {seconds:>7} s  "
            tail = "" if passed else f"  {status}"
            self.write(head + fitted(plain_name(name), columns() - len(head) - len(tail)) + tail)
            return
        if not (passed or skipped):
            tail = f": {status.lower()} after {seconds} s"
            self.write("failed: " + fitted(plain_name(name), columns() - 8 - len(tail)) + tail)
        text = f"tested {number} of {total} in {clock(time.monotonic() - self.begin)}"
        if self.skipped:
            text += f", {self.skipped} skipped"
        if self.failed:
            text += f", {self.failed} failed"
        self.out.write("\r\033[K" + text[: columns() - 1])
        self.line_open = True

    def line(self, line):
        match = RESULT.match(line)
        if match:
            number, total, name, _, status, seconds = match.groups()
            self.result(number, total, name, status, seconds)
        elif line.startswith(("The following tests", "Errors while running CTest", "Output from these tests")):
            self.hidden = True
        elif self.hidden or re.match(r"^ +Start +\d+: |^(Internal ctest changing|Use \"--rerun)", line):
            pass
        elif line.strip():
            self.write(line.rstrip("\n"))

    def end(self):
        if self.line_open:
            self.out.write("\n")


def watch():
    shown = Watch()
    for line in sys.stdin:
        shown.line(line)
        shown.out.flush()
    shown.end()


# ---- What it came to -----------------------------------------------------------------------------


@dataclass
class Test:
    stage: str
    name: str
    seconds: float
    status: str  # passed, failed, skipped
    message: str
    output: str


@dataclass
class Stage:
    name: str
    build: float
    test: float
    tests: list = field(default_factory=list)
    left_out: list = field(default_factory=list)

    def count(self, status):
        return sum(test.status == status for test in self.tests)


def read_tests(stage, junit):
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        failure, skipped = case.find("failure"), case.find("skipped")
        status, message = "passed", ""
        if failure is not None or case.get("status") == "fail":
            status, message = "failed", failure.get("message", "") if failure is not None else ""
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            status, message = "skipped", skipped.get("message", "") if skipped is not None else ""
            if "Unable to find executable" in message or "NOT_BUILT" in case.get("name"):
                status = "failed"
        output = case.findtext("system-out") or ""
        yield Test(stage, case.get("name"), float(case.get("time") or 0), status, message, output)


def read_stage(text):
    name, build, tested, *files = text.split(",")
    stage = Stage(name, float(build), float(tested))
    if files and os.path.exists(files[0]):
        stage.tests = list(read_tests(name, files[0]))
    if len(files) > 1 and os.path.exists(files[1]):
        stage.left_out = Path(files[1]).read_text().split()
    return stage


def table(stages):
    yield f"{'stage':10}{'build, min':>12}{'test, min':>12}{'passed':>10}{'failed':>10}{'skipped':>10}"
    rows = [
        (s.name, s.build, s.test, s.count("passed"), s.count("failed"), s.count("skipped")) for s in stages
    ]
    rows.append(("together", *(sum(column) for column in list(zip(*rows))[1:])))
    for name, build, tested, passed, failed, skipped in rows:
        yield f"{name:10}{build / 60:12.1f}{tested / 60:12.1f}{passed:10}{failed:10}{skipped:10}"


def longest(stages, width):
    tests = sorted((t for s in stages for t in s.tests), key=lambda t: -t.seconds)[:LONGEST]
    several = len({test.stage for test in tests}) > 1
    for test in tests:
        tail = f"  ({test.stage})" if several else ""
        yield f"{test.seconds:8.1f} s  " + fitted(plain_name(test.name), width - 12 - len(tail)) + tail


def skip_reason(test):
    """What follows GTest's "Skipped", or else the last line that the test wrote."""
    match = re.search(r": Skipped\n(.*?)(\n\n|\n\[|$)", test.output, re.S)
    if match and match.group(1).strip():
        return " ".join(match.group(1).split())
    if test.message == "Disabled" or "DISABLED" in test.message.upper():
        return "disabled"
    lines = [line for line in test.output.splitlines() if line.strip() and not line.startswith("[")]
    return lines[-1].strip() if lines else "no reason given"


def skipped(stages, width):
    reasons = defaultdict(list)
    for stage in stages:
        for test in stage.tests:
            if test.status == "skipped":
                reasons[(stage.name, skip_reason(test))].append(test.name)
        if stage.left_out:
            reasons[(stage.name, "only in ./run test --ci")].extend(stage.left_out)
    several = sum(bool(stage.tests) for stage in stages) > 1
    for (stage, reason), names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield from wrapped(f"{len(names):5}  {reason}" + (f" ({stage})" if several else ""), width, 7)
        named = [plain_name(name) for name in names[:3]] + (["…"] if len(names) > 3 else [])
        yield from (" " * 7 + fitted(name, width - 7) for name in named)


def wrapped(line, width, indent):
    """Cut at `width`; what follows is indented."""
    while len(line) > width:
        cut = line.rfind(" ", indent + 1, width + 1)
        cut = cut if cut > width // 2 else width
        yield line[:cut].rstrip()
        line = " " * indent + line[cut:].lstrip()
    yield line


def reason(test, limit):
    """The failed assertions, or else the end of what the test wrote; at most `limit` lines."""
    output = test.output.replace(str(ROOT) + "/", "")
    lines = [line.rstrip() for line in output.splitlines()]
    found, taking = [], False
    for line in lines:
        if re.search(r":\d+: Failure$|^unknown file: Failure$|C\+\+ exception with description", line):
            taking = True
        elif re.match(r"\[ +(FAILED|OK|RUN|SKIPPED|-+|=+|PASSED) *\]|\[-+\]|\[=+\]", line):
            taking = False
        if taking and line:
            found.append(line)
    if found:
        return found[:limit] + (["…"] if len(found) > limit else [])
    rest = [line for line in lines if line and not re.match(r"\[.{10}\] |Note: Google Test filter", line)]
    return rest[-limit:]


def command(test):
    option = "" if test.stage == "release" else f"--{test.stage} "
    escaped = re.sub(r"([.^$*+?()\[\]|\\])", r"\\\1", test.name)
    return f"./run test {option}-R '^{escaped}$'"


def failures(stages, width, limit):
    failed = [test for stage in stages for test in stage.tests if test.status == "failed"]
    if not failed:
        return
    yield f"Failed: {len(failed)}"
    limit = limit or max(3, 16 // len(failed))
    for test in failed[:FAILURES_SHOWN]:
        yield from wrapped(f"  {plain_name(test.name)}", width, 4)
        message = test.message if test.message not in ("", "Failed") else "failed"
        yield f"    {message.lower()} after {test.seconds:.1f} s ({test.stage})"
        for line in reason(test, limit):
            yield from wrapped("    " + line, width, 6)
        yield from wrapped("    alone: " + command(test), width, 6)
    for test in failed[FAILURES_SHOWN:]:
        yield fitted(f"  {plain_name(test.name)} ({test.stage})", width)


def summary(stages, failure_lines, width):
    lines = list(table(stages))
    for title, rows in (("Longest tests:", longest(stages, width)), ("Skipped, and why:", skipped(stages, width))):
        rows = list(rows)
        if rows:
            lines += ["", title, *rows]
    rows = list(failures(stages, width, failure_lines))
    return lines + ([""] + rows if rows else [])


def main(arguments):
    match arguments:
        case ["watch"]:
            watch()
        case ["summary", "--failure-lines", count, *stages]:
            print(*summary([read_stage(stage) for stage in stages], int(count), columns()), sep="\n")
        case ["summary", *stages]:
            print(*summary([read_stage(stage) for stage in stages], 0, columns()), sep="\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
