"""Questions that need no run: plan, simulate, sweep, estimate_memory, explain."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _core
from ._schedule import Schedule
from ._settings import is_list, split_lists, text_of, texts_of

Path = Union[str, "os.PathLike[str]"]


class Setting(NamedTuple):
    """A row of the table of settings."""

    name: str
    type: str  #: "integer", "number", "flag", "text" or "bytes"
    default: Any  #: None if unset means something of its own
    help: str
    choices: Tuple[str, ...]  #: allowed texts; empty: any


def settings(of: str = "session") -> Dict[str, Setting]:
    """The settings that `of` takes: "session", "plan", "simulate" or "estimate_memory"."""
    if of not in ("session", "plan", "simulate", "estimate_memory"):
        raise ValueError(f"{of!r} has no settings; choose session, plan, simulate or estimate_memory")
    return {
        row["name"]: Setting(**{**row, "choices": tuple(row["choices"])}) for row in _core.settings(of)
    }


class _Answer(Mapping[str, Any]):
    """What a command prints with --format json, as a mapping."""

    def __init__(self, json: Dict[str, Any]):
        self._json = json

    def __getitem__(self, key: str) -> Any:
        return self._json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._json)

    def __len__(self) -> int:
        return len(self._json)


class Plan(_Answer):
    """A run before it runs: its schedules, and what it costs, exactly.

    A mapping with the keys of `tessera plan --format json`: settings, parameters, peak_bytes, ...
    """

    def __init__(self, json: Dict[str, Any], schedules: List[Schedule], notes: List[str]):
        super().__init__(json)
        #: A schedule for each pipeline rank.
        self.schedules = schedules
        #: Sentences on how the run will go.
        self.notes = notes

    def __repr__(self) -> str:
        chosen = self["settings"]
        return (
            f"<tessera.Plan: {chosen['strategy']} on {chosen['ranks']} ranks, "
            f"{self['peak_bytes']['total']} bytes per rank>"
        )

    def __str__(self) -> str:
        return _core.print_schedules([one._schedule for one in self.schedules])

    @property
    def schedule(self) -> Schedule:
        """The schedule of the first pipeline rank, the only one without a pipeline."""
        return self.schedules[0]

    @property
    def settings(self) -> Dict[str, Any]:
        """Every setting as it has come to be."""
        settings: Dict[str, Any] = self["settings"]
        return settings

    @property
    def peak_bytes(self) -> Dict[str, int]:
        """The peak memory of one rank, by category and in total; of the largest stage."""
        peak_bytes: Dict[str, int] = self["peak_bytes"]
        return peak_bytes

    @property
    def sent_bytes(self) -> Dict[str, int]:
        """What one rank sends in a step, by kind of collective."""
        sent_bytes: Dict[str, int] = self["sent_bytes"]
        return sent_bytes


def plan(*, config: Optional[Path] = None, **settings: Any) -> Plan:
    """Plans one run, without a device: milliseconds, for any number of ranks.

    `config`: a file of settings, of ours, Accelerate's or DeepSpeed's; keywords win over it.
    `settings`: as the flags of `tessera plan`: model, ranks, strategy, precision, fit, ...
    Raises ConfigError on settings that are unknown or do not fit together.
    """
    json, schedules, notes = _core.plan(texts_of(settings), _path(config))
    return Plan(json, [Schedule._of(one) for one in schedules], notes)


class Span(NamedTuple):
    """When an action of a simulated step ran, in virtual seconds."""

    action: int  #: the index in the schedule
    lane: str
    begin: float
    end: float


class Simulation(_Answer):
    """A step on a virtual clock, of a machine that need not be here.

    A mapping with the keys of a run of `tessera simulate --format json`: step_seconds, tokens,
    tokens_per_second, mfu, exposed_seconds, lanes, memory_bytes, ...
    """

    def __init__(self, json: Dict[str, Any], schedules: List[Schedule], spans: List[List[Span]]):
        super().__init__(json)
        #: A schedule for each pipeline rank.
        self.schedules = schedules
        #: When the actions of each pipeline rank ran.
        self.spans_by_rank = spans

    def __repr__(self) -> str:
        return f"<tessera.Simulation: {self['step_seconds']:.6g} s per step>"

    @property
    def schedule(self) -> Schedule:
        """The schedule of the first pipeline rank, which `spans` are of."""
        return self.schedules[0]

    @property
    def spans(self) -> List[Span]:
        """When the actions of the first pipeline rank ran."""
        return self.spans_by_rank[0]

    @property
    def step_seconds(self) -> float:
        """From one step's end to the next one's."""
        step_seconds: float = self["step_seconds"]
        return step_seconds


def simulate(*, config: Optional[Path] = None, **settings: Any) -> Simulation:
    """Predicts the time of a step by a hardware profile.

    `settings`: as the flags of `tessera simulate`: those of a run, profile ("h100-sxm" or a file)
    and ranks_per_node. Raises ConfigError.
    """
    json, schedules, spans = _core.simulate(texts_of(settings), _path(config))
    return Simulation(
        json,
        [Schedule._of(one) for one in schedules],
        [[Span(*one) for one in of_rank] for of_rank in spans],
    )


class Sweep(Sequence[Dict[str, Any]]):
    """The runs of a sweep: mappings with the keys of Simulation, the swept settings among them, and
    "best": the Pareto front, where nothing else is both smaller and faster, by tokens per second
    and rank."""

    def __init__(self, runs: List[Dict[str, Any]], left_out: List[Dict[str, Any]]):
        self._runs = runs
        #: Combinations that cannot be: {"values": [...], "why": "..."}.
        self.left_out = left_out

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<tessera.Sweep of {len(self)} runs, {len(self.left_out)} left out>"

    @property
    def pareto(self) -> List[Dict[str, Any]]:
        """The best runs, least memory first."""
        return sorted((run for run in self if run["best"]), key=lambda run: run["memory_bytes"])


def sweep(*, config: Optional[Path] = None, **settings: Any) -> Sweep:
    """Simulates every combination of the settings that are lists; the last one's values change first.

        tessera.sweep(model="gpt2-1558m", ranks=[8, 64], strategy=["zero2", "full_shard"])

    Raises ConfigError; combinations that cannot be planned are left out, and say why.
    """
    single, several = split_lists(settings)
    json = _core.sweep(single, _path(config), several)
    return Sweep(json["runs"], json["left_out"])


class MemoryEstimate(_Answer):
    """Memory by strategy: a mapping with the keys of `tessera estimate-memory --json`."""

    @property
    def loading(self) -> List[Dict[str, Any]]:
        """Accelerate's table: what weights take by dtype."""
        loading: List[Dict[str, Any]] = self["loading"]
        return loading

    @property
    def training(self) -> List[Dict[str, Any]]:
        """What one rank needs, by strategy, ranks, precision and recomputation."""
        training: List[Dict[str, Any]] = self["training"]
        return training


def estimate_memory(model: str, **settings: Any) -> MemoryEstimate:
    """What loading a model, and training it on many ranks, needs.

    ranks, strategy, precision and dtypes may be lists; by default all strategies on 8 ranks in bf16.
    Other settings are those of a run. Raises ConfigError.
    """
    lists = ("ranks", "strategy", "precision", "dtypes")
    settings = {
        name: [value] if name in lists and value is not None and not is_list(value) else value
        for name, value in settings.items()
    }
    single, several = split_lists({"model": model, **settings})
    return MemoryEstimate(_core.estimate_memory(single, several))


def explain(config: Path, **settings: Any) -> Dict[str, Any]:
    """What each key of a config file means here, and every setting with its source.

    Keys: files, with their entries and a verdict; settings, by name: value and source. Raises
    ConfigError if a key is refused.
    """
    return _core.explain(texts_of(settings), text_of(config))


def _path(config: Optional[Path]) -> str:
    return "" if config is None else os.fspath(config)
