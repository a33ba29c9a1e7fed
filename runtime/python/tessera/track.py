"""Sends the log of a run to a tracker: python -m tessera.track --to wandb run.jsonl

Follows the file that `--log run.jsonl` (or Session(log="run.jsonl")) writes, while it is written and
until the run's summary, and logs the settings, the metrics of steps and evaluations under the names
that our TensorBoard files have, and the summary. It needs nothing of the run but the file: start it
before, beside or after, on the same machine or on another one that sees the file. A log that several
runs have been appended to becomes as many runs of the tracker.

    python -m tessera.track --to wandb --project gpt run.jsonl      WANDB_MODE=offline works, too
    python -m tessera.track --to mlflow --project gpt run.jsonl     MLFLOW_TRACKING_URI says where
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, TextIO

Line = Dict[str, Any]

#: The metrics of a step: its key in the log, and its name in a tracker.
STEP_METRICS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/gradient_norm",
    "loss_scale": "train/loss_scale",
    "tokens_per_second": "speed/tokens_per_second",
    "positions_per_second": "speed/positions_per_second",
    "mfu": "speed/mfu",
    "exposed_seconds": "speed/exposed_communication_seconds",
    "peak_bytes": "memory/peak_bytes",
}
#: The same of an evaluation.
EVALUATION_METRICS = {
    "loss": "eval/loss",
    "perplexity": "eval/perplexity",
    "mean_token_accuracy": "eval/mean_token_accuracy",
    "macro_f1": "eval/macro_f1",
    "f1": "eval/f1",
    "best_loss": "eval/best_loss",
}
#: Of the first line: what is not a setting.
RUN_KEYS = ("kind",)


class Tracker(Protocol):
    """What a run's lines become."""

    def begin(self, settings: Dict[str, Any]) -> None:
        """A run with these settings."""

    def metrics(self, step: int, values: Dict[str, float]) -> None:
        """The values after a step."""

    def summary(self, values: Dict[str, Any]) -> None:
        """What the run came to."""

    def end(self, is_complete: bool) -> None:
        """No more lines."""


class Wandb:
    """Weights & Biases."""

    def __init__(self, project: Optional[str], name: Optional[str]):
        import wandb

        self._wandb = wandb
        self._project = project
        self._name = name
        self._run: Any = None

    def begin(self, settings: Dict[str, Any]) -> None:
        self._run = self._wandb.init(
            project=self._project, name=self._name, config=settings, reinit=True
        )

    def metrics(self, step: int, values: Dict[str, float]) -> None:
        self._run.log(values, step=step)

    def summary(self, values: Dict[str, Any]) -> None:
        self._run.summary.update(values)

    def end(self, is_complete: bool) -> None:
        self._run.finish(exit_code=0 if is_complete else 1)


class Mlflow:
    """MLflow."""

    LONGEST = 6000  # characters of a parameter that MLflow takes

    def __init__(self, project: Optional[str], name: Optional[str]):
        import mlflow

        self._mlflow = mlflow
        self._name = name
        if project is not None:
            mlflow.set_experiment(project)

    def begin(self, settings: Dict[str, Any]) -> None:
        self._mlflow.start_run(run_name=self._name)
        self._mlflow.log_params(
            {key: str(value)[: self.LONGEST] for key, value in settings.items() if value is not None}
        )

    def metrics(self, step: int, values: Dict[str, float]) -> None:
        self._mlflow.log_metrics(values, step=step)

    def summary(self, values: Dict[str, Any]) -> None:
        self._mlflow.log_metrics(
            {
                f"summary/{key}": float(value)
                for key, value in values.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
        )
        self._mlflow.set_tags(
            {key: value for key, value in values.items() if isinstance(value, str)}
        )

    def end(self, is_complete: bool) -> None:
        self._mlflow.end_run("FINISHED" if is_complete else "KILLED")


TRACKERS: Dict[str, Callable[[Optional[str], Optional[str]], Tracker]] = {
    "wandb": Wandb,
    "mlflow": Mlflow,
}


def lines_of(file: TextIO, follow: bool, interval: float) -> Iterator[Line]:
    """The whole lines of a log; with `follow`, those to come, too."""
    rest = ""
    number = 0
    while True:
        rest += (read := file.read())
        *whole, rest = rest.split("\n")
        for text in whole:
            number += 1
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise SystemExit(f"{file.name}:{number}: this line is no JSON ({error})") from None
            if not isinstance(line, dict) or "kind" not in line:
                raise SystemExit(
                    f"{file.name}:{number}: this is no log of tessera: the line has no 'kind'; "
                    "give the file of --log"
                )
            yield line
        if not read and not follow:
            return
        if not read:
            time.sleep(interval)


def flat(values: Dict[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Nested values under names with slashes."""
    result: Dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result.update(flat(value, f"{prefix}{key}/"))
        elif value is not None:
            result[prefix + key] = value
    return result


def chosen(line: Line, metrics: Dict[str, str]) -> Dict[str, float]:
    """The metrics that a line has; a loss that is no number is null in the log, and nan here."""
    values = {}
    for key, name in metrics.items():
        if key in line:
            value = line[key]
            if value is not None:
                values[name] = float(value)
            elif key == "loss":
                values[name] = math.nan
    return values


def track(lines: Iterator[Line], tracker: Tracker, ends_with_summary: bool) -> int:
    """Hands lines to a tracker; returns how many runs there were."""
    runs = 0
    is_open = False
    step = 0

    def end(is_complete: bool) -> None:
        nonlocal is_open
        if is_open:
            tracker.end(is_complete)
        is_open = False

    try:
        for line in lines:
            kind = line["kind"]
            if kind == "run":
                end(False)
                tracker.begin({key: value for key, value in line.items() if key not in RUN_KEYS})
                runs, is_open, step = runs + 1, True, 0
            elif not is_open:
                raise SystemExit(f"a line of kind '{kind}' is before that of its run; is the log whole?")
            elif kind == "step":
                step = line["step"]
                tracker.metrics(step, chosen(line, STEP_METRICS))
            elif kind == "evaluation":
                tracker.metrics(line["step"], chosen(line, EVALUATION_METRICS))
            elif kind == "summary":
                tracker.summary(flat({k: v for k, v in line.items() if k != "kind"}))
                end(True)
                if ends_with_summary:
                    break
    finally:
        end(False)
    return runs


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m tessera.track",
        description="Sends the log of a run (tessera train --log FILE) to a tracker.",
    )
    result.add_argument("log", help="the file of --log; it need not be there yet")
    result.add_argument("--to", required=True, choices=sorted(TRACKERS), help="the tracker")
    result.add_argument("--project", help="wandb's project, MLflow's experiment [the tracker's own default]")
    result.add_argument("--name", help="the run's name [one that the tracker makes up]")
    result.add_argument(
        "--once", action="store_true", help="send what is in the file now, and do not wait for more"
    )
    result.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks [1]"
    )
    return result


def open_log(path: str, follow: bool, interval: float) -> TextIO:
    """The file, as soon as it is there."""
    while True:
        try:
            return open(path, encoding="utf-8", errors="replace")
        except FileNotFoundError:
            if not follow:
                raise SystemExit(f"{path}: there is no such file; give that of --log") from None
        time.sleep(interval)


def main(arguments: Optional[List[str]] = None) -> int:
    """The command; returns its exit code."""
    asked = parser().parse_args(arguments)
    try:
        tracker = TRACKERS[asked.to](asked.project, asked.name)
    except ImportError as error:
        package = {"wandb": "wandb", "mlflow": "mlflow-skinny"}[asked.to]
        print(f"{asked.to} cannot be loaded ({error}): pip install {package}", file=sys.stderr)
        return 1
    follow = not asked.once
    try:
        with open_log(asked.log, follow, asked.interval) as file:
            runs = track(lines_of(file, follow, asked.interval), tracker, ends_with_summary=follow)
    except KeyboardInterrupt:
        return 130
    if runs == 0:
        print(f"{asked.log}: there is no run in it yet", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
