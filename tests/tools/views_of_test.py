#!/usr/bin/env python3
"""Each view among a kernel's arguments is in tests/kernels/views_of.h, without which a GPU would get the host's."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = re.compile(r"^  (TensorView|Fp8Operand|std::span<const TensorView>) ([^;(]+);", re.MULTILINE)


def arguments():
    """Each struct of arguments, with its members that are or hold views, spans of views apart."""
    for header in sorted((ROOT / "kernels/include/tessera/kernels").glob("*.h")):
        text = re.sub(r"//.*", "", header.read_text())
        for name, body in re.findall(r"^struct (\w+Args) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
            views, spans = set(), set()
            for kind, names in MEMBERS.findall(body):
                members = [re.match(r"\w+", part.strip()).group() for part in names.split(",")]
                (spans if kind.startswith("std::span") else views).update(members)
            yield name, views, spans


class ViewsOf(unittest.TestCase):
    def test_lists_name_all_views(self):
        text = (ROOT / "tests/kernels/views_of.h").read_text()
        lists = dict(re.findall(r"views_of\((\w+)& a\) \{(.*?)\}(?:  //[^\n]*)?\n", text, re.DOTALL))
        kernels = (ROOT / "tests/kernels/kernels_on_cuda.cpp").read_text()
        seen = 0
        for name, views, spans in arguments():
            seen += len(views)
            self.assertIn(name, lists)
            self.assertEqual(set(re.findall(r"&a\.(\w+)", lists[name])), views, name)
            for span in spans:
                self.assertIn(f"&{name}::{span}>", kernels)
        self.assertGreater(seen, 100)


if __name__ == "__main__":
    unittest.main()
