#!/usr/bin/env python3
"""Ctrl-C ends a loop between two steps, after which the session goes on; a second one gives a step up."""

import os
import signal
import subprocess
import sys

import support

support.need("numpy", "ml_dtypes")

# A step of this takes most of a minute, if it is not given up: two signals arrive within it on a busy machine, too.
LONG = {**support.SMALL, "layers": 6, "sequence_length": 256, "micro_batch": 8, "accumulate": 200, "steps": 1000}

GOES_ON = """
import tessera
settings = {settings!r}
with tessera.Session({data!r}, **settings) as session:
    session.step()
    print("steps", flush=True)
    try:
        for record in session:
            pass
    except KeyboardInterrupt:
        steps = session.steps
        print("interrupted", steps, flush=True)
        path = session.save({folder!r})
    with tessera.Session({data!r}, resume=path, **settings) as other:
        print("same", other.step().loss == session.step().loss, steps == session.steps - 1, flush=True)
"""

GIVES_UP = """
import signal, tessera
settings = {settings!r}
session = tessera.Session({data!r}, **settings)
first = signal.default_int_handler
def handler(number, frame):
    print("heard", flush=True)
    first(number, frame)
signal.signal(signal.SIGINT, handler)
print("steps", flush=True)
try:
    while session.step():
        pass
except KeyboardInterrupt:
    try:
        session.step()
    except tessera.Error as error:
        print("given up:", error, flush=True)
"""


class InterruptTest(support.FolderTest):
    def start(self, script, settings):
        text = script.format(settings=settings, data=str(support.ALICE), folder=str(self.folder / "run"))
        child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "steps\n")
        return child

    def test_the_session_goes_on(self):
        child = self.start(GOES_ON, support.SMALL | {"steps": 100000})
        os.kill(child.pid, signal.SIGINT)
        self.assertRegex(child.stdout.readline(), "interrupted [0-9]+")
        self.assertEqual(child.stdout.readline(), "same True True\n")
        self.assertEqual(child.wait(), 0)

    def test_a_second_one_gives_the_step_up(self):
        child = self.start(GIVES_UP, LONG)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(child.stdout.readline(), "heard\n")
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(child.stdout.readline(), "heard\n")
        self.assertRegex(child.stdout.read(), "^given up: ")
        self.assertEqual(child.wait(), 0)


if __name__ == "__main__":
    support.main()
