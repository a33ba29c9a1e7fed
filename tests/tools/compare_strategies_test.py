#!/usr/bin/env python3
"""Runs bench/peers/compare_strategies.py over stand-ins for tessera and for PyTorch: its ratios, peers
that fail or hang, losses that differ."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "peers",
                      "compare_strategies.py")

# Steps of 0.5 s, losses of 10.
TESSERA = """#!/usr/bin/env python3
import json, sys
if sys.argv[1] == "train":
    flag = lambda name: sys.argv[sys.argv.index(name) + 1]
    lines = [{"kind": "run", "version": "9", "parameters": 7, "layers": 1, "heads": 1, "width": 1,
              "vocab_size": 8, "context_length": 64}]
    lines += [{"kind": "step", "loss": 10.0, "seconds": 0.5} for _ in range(int(flag("--steps")))]
    lines += [{"kind": "summary", "peak_bytes": {"measured": {"total": 1}}}]
    with open(flag("--log"), "w") as log:
        log.write("\\n".join(json.dumps(line) for line in lines))
"""

# DDP takes a second a step, FSDP2 fails, DeepSpeed ZeRO-1 hangs, ZeRO-2 trains something else.
TORCH = """#!/usr/bin/env python3
import json, sys, time
parallel = sys.argv[sys.argv.index("--parallel") + 1]
if parallel == "fsdp":
    sys.exit("Traceback:\\nModuleNotFoundError: No module named 'torch'\\nthe end")
if parallel == "zero1":
    time.sleep(60)
print("words of a library")
print(json.dumps({"torch": "8", "step_seconds": [1.0, 1.0], "adamw": "fused", "peak_bytes": 2**20,
                  "losses": [10.0, 10.5 if parallel == "zero2" else 10.00001, 10.0]}))
"""


class CompareStrategies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.paths = {name: os.path.join(folder.name, name) for name in ("tessera", "python", "json")}
        for name, text in (("tessera", TESSERA), ("python", TORCH)):
            with open(self.paths[name], "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(self.paths[name], 0o755)

    def compare(self, only):
        command = [sys.executable, "-B", SCRIPT, "--program", self.paths["tessera"], "--python",
                   self.paths["python"], "--only", only, "--rounds", "2", "--steps", "2", "--limit", "4",
                   "--no-mkl-override", "--device", "cpu", "--json", self.paths["json"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        with open(self.paths["json"], encoding="utf-8") as file:
            return done, json.load(file)

    def test_ratios_are_of_the_strategy_beside(self):
        done, result = self.compare("ddp")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(list(result["runs"]), ["no_shard", "ddp"])
        self.assertEqual(result["peers"]["ddp"]["tokens_per_second_ratio"],
                         {"median": 2.0, "first_quartile": 2.0, "third_quartile": 2.0})
        self.assertRegex(done.stdout, r"(?m)^ddp +no_shard +512\.0 2\.00 \(2\.00-2\.00\) +1 ")
        self.assertLessEqual(max(map(len, done.stdout.splitlines()[3:])), 80)
        self.assertEqual(result["versions"], {"tessera": "9", "torch": "8"})

    def test_peers_that_fail_or_hang_are_listed_with_the_reason(self):
        done, result = self.compare("fsdp2,deepspeed-zero1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(result["unavailable"], {
            "fsdp2": "ModuleNotFoundError: No module named 'torch'",
            "deepspeed-zero1": "no end within 4 s (--limit)"})
        self.assertIn("fsdp2: unavailable: ModuleNotFoundError", done.stdout)

    def test_other_losses_are_an_error(self):
        done, result = self.compare("ddp,deepspeed-zero2")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertAlmostEqual(result["loss_deviations"]["deepspeed-zero2"], 0.05)
        self.assertIn("deepspeed-zero2: losses differ by 5.0e-02", done.stdout)
        self.assertNotIn("ddp: losses", done.stdout)


if __name__ == "__main__":
    unittest.main()
