#!/usr/bin/env python3
"""Trains with --tensorboard, --csv and --log, and reads the event file with TensorBoard's own reader.

    tensorboard_test.py PROGRAM DATA

Exits with 77 (skipped) where the package tensorboard is not installed.
"""

import csv
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError as missing:
    print(f"skipped: {missing}; pip install tensorboard")
    sys.exit(77)

TAGS = {
    "train/loss": "loss",
    "train/gradient_norm": "grad_norm",
    "train/learning_rate": "learning_rate",
    "speed/tokens_per_second": "tokens_per_second",
    "speed/positions_per_second": "positions_per_second",
}


def as_float32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def main():
    program, data = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run(
            [program, "train", "--no-default-config", "--device", "cpu", "--data", data, "--model", "gpt2-tiny",
             "--layers", "1", "--ranks", "2", "--steps", "5", "--sequence-length", "32", "--time-actions",
             "--quiet", "--sample-tokens", "0", "--tensorboard", folder / "board",
             "--log", folder / "run.jsonl", "--csv", folder / "run.csv"],
            check=True)
        steps = [line for line in map(json.loads, (folder / "run.jsonl").open()) if line["kind"] == "step"]
        assert len(steps) == 5, steps

        board = event_accumulator.EventAccumulator(str(folder / "board"))
        board.Reload()
        tags = set(board.Tags()["scalars"])
        wanted = set(TAGS) | {"speed/mfu", "memory/peak_bytes", "speed/exposed_communication_seconds"}
        assert tags == wanted, tags ^ wanted
        for tag, key in TAGS.items():
            events = board.Scalars(tag)
            assert [event.step for event in events] == [1, 2, 3, 4, 5], tag
            for event, step in zip(events, steps):
                assert event.value == as_float32(step[key]), (tag, event, step[key])
        assert all(event.value > 0 for event in board.Scalars("speed/mfu"))
        text = board.Tensors("settings/text_summary") if "settings/text_summary" in board.Tags()["tensors"] \
            else board.Tensors("settings")
        assert b"| strategy |" in text[0].tensor_proto.string_val[0]

        rows = list(csv.DictReader((folder / "run.csv").open()))
        assert len(rows) == 5
        for row, step in zip(rows, steps):
            for key in ("loss", "grad_norm", "learning_rate", "tokens_per_second", "positions_per_second"):
                assert float(row[key]) == step[key], (key, row, step)
            assert math.isfinite(float(row["exposed_seconds"]))
    print("TensorBoard reads what was logged")


if __name__ == "__main__":
    main()
