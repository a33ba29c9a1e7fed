#!/usr/bin/env python3
"""Runs the suites of GoogleTest programs, each in a process of its own.

    run_suites.py --xml OUT.xml [--only REGEX] [--except REGEX] [--jobs 4] [--limit 60] PROGRAM...

After an illegal access every later call of that process fails: so a suite that makes one hides no
other. OUT.xml is rewritten after each suite; one that ends without results of its own, killed or out
of time, has an error there. Prints what failed. Exits with 1 if anything did, or if there was no suite.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

TAIL = 4000  # characters of what a suite printed


def suites_of(program):
    """As --gtest_list_tests names them: "Suite", "Cases/Suite", "Suite/0"."""
    listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit(f"{program} --gtest_list_tests: exit code {listed.returncode}\n{listed.stderr[-TAIL:]}")
    # What precedes the first suite is GoogleTest's own.
    return [line.split()[0][:-1] for line in listed.stdout.splitlines()
            if re.match(r"[A-Za-z_][\w/]*\.(\s|$)", line)]


def broken(suite, why, printed):
    element = xml.Element("testsuite", name=suite, tests="1", failures="0", errors="1")
    case = xml.SubElement(element, "testcase", name="(process)", classname=suite)
    xml.SubElement(case, "error", message=why).text = printed[-TAIL:]
    return [element]


def run(program, suite, limit):
    """The suite's elements of a results file."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results.xml")
        command = [program, f"--gtest_filter={suite}.*", f"--gtest_output=xml:{results}",
                   "--gtest_brief=1"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=limit)
        except subprocess.TimeoutExpired as stopped:
            printed = (stopped.stdout or b"").decode(errors="replace")
            return broken(suite, f"no end within {limit} s", printed)
        try:
            elements = list(xml.parse(results).getroot())
        except (OSError, xml.ParseError):
            return broken(suite, f"exit code {done.returncode}, and no results", done.stdout)
        if done.returncode != 0 and not any(failures(element) for element in elements):
            elements += broken(suite, f"exit code {done.returncode}", done.stdout)
        return elements


def failures(suite):
    """(test, message) of each test of a suite's element that failed."""
    return [(f"{suite.get('name')}.{case.get('name')}", problem.get("message", ""))
            for case in suite.iter("testcase") for problem in case
            if problem.tag in ("failure", "error")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--xml", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--except", dest="without", default="$^")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--limit", type=float, default=60, help="seconds for a suite")
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()

    root, tests, failed = xml.Element("testsuites"), 0, []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {}
        for program in args.programs:
            for suite in suites_of(program):
                if re.search(args.only, suite) and not re.search(args.without, suite):
                    running[pool.submit(run, program, suite, args.limit)] = program, suite
        for done in concurrent.futures.as_completed(running):
            program, suite = running[done]
            for element in done.result():
                element.set("package", os.path.basename(program))
                root.append(element)
                failed += failures(element)
                tests += len(list(element.iter("testcase")))
            root[:] = sorted(root, key=lambda e: (e.get("package"), e.get("name")))
            xml.ElementTree(root).write(args.xml + ".new", encoding="unicode", xml_declaration=True)
            os.replace(args.xml + ".new", args.xml)
    for test, message in sorted(failed):
        print(f"FAILED {test}\n  " + message[:TAIL].replace("\n", "\n  "))
    print(f"{len(running)} suites, {tests} tests, {len(failed)} failures")
    sys.exit(bool(failed) or not running)


if __name__ == "__main__":
    main()
