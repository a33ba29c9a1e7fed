#!/usr/bin/env python3
"""The notebook of the package runs from its first cell to its last, and draws its figures."""

import os
import unittest

import support

support.need("numpy", "ml_dtypes", "matplotlib", "nbformat", "nbclient", "ipykernel")

import nbclient  # noqa: E402
import nbformat  # noqa: E402

NOTEBOOK = support.SOURCE / "runtime" / "python" / "strategies.ipynb"


class NotebookTest(support.FolderTest):
    def test_runs(self):
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                self.assertEqual(cell.outputs, [], "outputs are not kept in the repository")
        os.environ["IPYTHONDIR"] = str(self.folder)
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3",
                                resources={"metadata": {"path": str(self.folder)}}).execute()
        figures = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
                   if "image/png" in output.get("data", {})]
        self.assertEqual(len(figures), 3)


if __name__ == "__main__":
    support.main()
