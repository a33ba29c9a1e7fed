#!/usr/bin/env python3
"""python -m tessera.track follows a log that is being written, and its trackers hold what is in it."""

import json
import os
import struct
import subprocess
import sys

import support
from support import ALICE, SMALL, FolderTest

support.need("numpy", "ml_dtypes")

from tessera import track  # noqa: E402


class Recorder:
    """A tracker that keeps what it is told."""

    def __init__(self):
        self.runs = []

    def begin(self, settings):
        self.runs.append({"settings": settings, "metrics": [], "summary": None, "complete": None})

    def metrics(self, step, values):
        self.runs[-1]["metrics"].append((step, values))

    def summary(self, values):
        self.runs[-1]["summary"] = values

    def end(self, is_complete):
        self.runs[-1]["complete"] = is_complete


class TrackTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.settings = {**SMALL, "data": ALICE, "eval_data": ALICE, "eval_tokens": 320, "eval_every": 3}
        self.lines = support.train(self.settings, self.folder)
        self.log = self.folder / "program.jsonl"
        self.losses = [line["loss"] for line in self.lines if line["kind"] == "step"]

    def command(self, *words, **environment):
        done = subprocess.run([sys.executable, "-m", "tessera.track", *map(str, words)], cwd=self.folder,
                              capture_output=True, text=True, env={**os.environ, **environment})
        return done

    def test_what_a_log_becomes(self):
        recorder = Recorder()
        with self.log.open() as file:
            self.assertEqual(track.track(track.lines_of(file, False, 0), recorder, True), 1)
        run = recorder.runs[0]
        self.assertTrue(run["complete"])
        self.assertEqual(run["settings"]["strategy"], "full_shard")
        self.assertEqual([values["train/loss"] for step, values in run["metrics"] if "train/loss" in values],
                         self.losses)
        self.assertEqual([step for step, values in run["metrics"] if "eval/loss" in values], [3, 6])
        self.assertEqual(run["summary"]["steps"], SMALL["steps"])
        self.assertEqual(run["summary"]["peak_bytes/measured/total"], run["summary"]["peak_bytes/predicted/total"])

    def test_follows_what_is_written_later(self):
        text = self.log.read_text()
        growing = self.folder / "growing.jsonl"
        parts = [text[i : i + 777] for i in range(0, len(text), 777)]

        class Slow:
            name = str(growing)

            def read(self):
                return parts.pop(0) if parts else ""

        recorder = Recorder()
        track.track(track.lines_of(Slow(), True, 0), recorder, True)
        self.assertEqual(parts, [])
        self.assertEqual([v["train/loss"] for _, v in recorder.runs[0]["metrics"] if "train/loss" in v], self.losses)

    def test_two_runs_in_one_log_and_one_that_was_cut_off(self):
        text = self.log.read_text()
        whole = [line for line in text.splitlines(keepends=True)]
        self.log.write_text("".join(whole[:-1]) + text)
        recorder = Recorder()
        with self.log.open() as file:
            self.assertEqual(track.track(track.lines_of(file, False, 0), recorder, False), 2)
        self.assertEqual([run["complete"] for run in recorder.runs], [False, True])

    def test_what_is_no_log(self):
        other = self.folder / "other.jsonl"
        other.write_text('{"a": 1}\n')
        done = self.command("--to", "mlflow", "--once", other) if has("mlflow") else None
        if done is not None:
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("other.jsonl:1: this is no log of tessera", done.stderr)
        with self.assertRaises(SystemExit), other.open() as file:
            list(track.lines_of(file, False, 0))

    def test_wandb_offline(self):
        if not has("wandb"):
            self.skipTest("wandb is not installed: pip install wandb")
        done = self.command("--to", "wandb", "--project", "p", "--name", "n", "--interval", "0.05", self.log,
                            WANDB_MODE="offline", WANDB_DIR=str(self.folder), WANDB_SILENT="true")
        self.assertEqual(done.returncode, 0, done.stderr)
        files = list(self.folder.glob("wandb/offline-run-*/run-*.wandb"))
        self.assertEqual(len(files), 1, list(self.folder.rglob("*")))
        self.assertEqual(wandb_losses(files[0]), self.losses)

    def test_mlflow_offline(self):
        if not has("mlflow"):
            self.skipTest("mlflow is not installed: pip install mlflow-skinny")
        store = (self.folder / "mlruns").as_uri()
        done = self.command("--to", "mlflow", "--project", "p", "--name", "n", "--interval", "0.05", self.log,
                            MLFLOW_TRACKING_URI=store, MLFLOW_ALLOW_FILE_STORE="true")
        self.assertEqual(done.returncode, 0, done.stderr)
        metrics = list(self.folder.glob("mlruns/*/*/metrics/train/loss"))
        self.assertEqual(len(metrics), 1, done.stderr)
        rows = [line.split() for line in metrics[0].read_text().splitlines()]
        self.assertEqual([float(row[1]) for row in rows], self.losses)
        run = metrics[0].parents[2]
        self.assertEqual((run / "params" / "strategy").read_text(), "full_shard")
        self.assertTrue((run / "metrics" / "eval" / "loss").exists())


def has(module):
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def wandb_losses(path):
    """The losses in the file of an offline run: records of protobuf in the format of LevelDB's logs."""
    from wandb.proto import wandb_internal_pb2

    losses = []
    for data in records_of(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            if "train/loss" in (item.key, *item.nested_key):
                losses.append(json.loads(item.value_json))
    return losses


def records_of(data):
    block, header, at, whole = 32768, 7, 7, b""
    while at + header <= len(data):
        if block - at % block < header:
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        at += header + size
        whole += data[at - size : at]
        if kind in (1, 4):  # a record, or the last part of one
            yield whole
            whole = b""


if __name__ == "__main__":
    support.main()
