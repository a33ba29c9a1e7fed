#!/usr/bin/env python3
"""A wheel, built of this build folder, runs the notebook in a fresh environment that has nothing of the build.

With TESSERA_WHEEL_OF_SOURCES=1 the wheel compiles everything instead: minutes.
"""

import os
import pathlib
import subprocess
import sys
import unittest
import venv

import support

support.need("scikit_build_core", "pybind11", "nbclient")

RUN = """
import pathlib, sys
import nbclient, nbformat
import tessera
assert pathlib.Path(sys.prefix) in pathlib.Path(tessera.__file__).parents, tessera.__file__
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
"""


class WheelTest(support.FolderTest):
    def run_quietly(self, *words):
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_runs_the_notebook(self):
        package = support.SOURCE / "runtime" / "python"
        build = [] if os.environ.get("TESSERA_WHEEL_OF_SOURCES") else [
            "-C", f"cmake.define.TESSERA_BUILD_FOLDER={os.environ['TESSERA_BUILD_FOLDER']}"]
        self.run_quietly(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", self.folder,
                         "-C", f"build-dir={self.folder / 'wheel'}", *build, package)
        wheels = list(self.folder.glob("*.whl"))
        self.assertEqual(len(wheels), 1)
        # The packages that the wheel needs are those that are installed here, so that no network is needed.
        fresh = self.folder / "venv"
        venv.create(fresh, with_pip=True, symlinks=True)
        here = next(path for path in sys.path if path.endswith("site-packages"))
        site = next(fresh.glob("lib/python*/site-packages"))
        pathlib.Path(site, "here.pth").write_text(here + "\n")
        python = fresh / "bin" / "python"
        self.run_quietly(python, "-m", "pip", "install", "--no-index", "--no-deps", wheels[0])
        notebook = package / "strategies.ipynb"
        self.run_quietly(python, "-c", RUN, notebook)


if __name__ == "__main__":
    support.main()
