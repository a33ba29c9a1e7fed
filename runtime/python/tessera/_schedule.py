"""The training step as a value: buffers, and actions that read and write them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _core


class Buffer(NamedTuple):
    """Memory of one rank that actions read and write."""

    name: str  #: "h.3.parameter", "p0", "loss", ...: for people
    kind: str  #: "state", "slot", "activation", ...
    role: str  #: "parameter", "gradient", "optimizer", ...
    tensor: Optional[str]  #: of an optimizer's tensor: which
    unit: Optional[str]  #: whose it is; None of slots, scalars and activations
    layer: Optional[str]  #: of activations and messages
    micro_step: Optional[int]
    format: str  #: how elements are stored: "fp32", "bf16", ...
    sharded: Tuple[str, ...]  #: the mesh axes along which it is cut
    numel: int  #: elements on one rank; 0 of activations, whose size is the layer's
    tier: str  #: "device", "host" or "disk"
    persistent: bool  #: kept from step to step


class Action(NamedTuple):
    """One element of a schedule: an operation on buffers, on a lane."""

    number: int  #: its place in the schedule
    lane: str  #: "compute", "gather", "reduce", "optimizer", ...
    operation: str  #: "forward", "all-gather", "reduce-scatter", ...
    layer: Optional[str]  #: of passes through layers, and of messages
    micro_step: Optional[int]
    over: Optional[str]  #: of collectives: the axes along which ranks meet
    reads: Tuple[str, ...]  #: operands: "h.3.parameter", "p0=h.3", "+g1=h.3/shard"
    writes: Tuple[str, ...]
    after: Tuple[int, ...]  #: earlier actions of other lanes that must have ended
    previous: Tuple[int, ...]  #: the same, of the step before
    peer: Optional[int]  #: of messages: the other pipeline rank
    text: str  #: the action in words


class Violation(NamedTuple):
    """A way in which a schedule is wrong."""

    rule: str  #: "happens-before", "contents", "end", ...
    action: int  #: the index of the offending action; -1: the schedule as a whole
    message: str


def _axes(words: Union[str, List[str]]) -> Tuple[str, ...]:
    names = [words] if isinstance(words, str) else words
    return tuple(name for name in names if name != "none")


class Schedule:
    """One step of one pipeline rank. Two are equal if they are the same step."""

    def __init__(self, text: str):
        """Parses what `str()` of a schedule, or `tessera plan --format schedule`, has written.

        Raises ConfigError that names the line.
        """
        self._schedule = _core.Schedule(text)

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """The same as Schedule(text)."""
        return cls(text)

    @classmethod
    def _of(cls, schedule: "_core.Schedule") -> "Schedule":
        made = cls.__new__(cls)
        made._schedule = schedule
        return made

    def __str__(self) -> str:
        return str(self._schedule)

    def __repr__(self) -> str:
        return f"<tessera.Schedule of {len(self.actions)} actions on {len(self.buffers)} buffers>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._schedule == other._schedule

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> Any:
        return (Schedule, (str(self),))

    @property
    def pipeline_rank(self) -> int:
        """The pipeline rank that runs it."""
        return self._schedule.pipeline_rank

    def to_json(self) -> Dict[str, Any]:
        """Every field by its name, as `tessera plan --format json` has it."""
        return self._schedule.to_json()

    @cached_property
    def _json(self) -> Dict[str, Any]:
        return self.to_json()

    @cached_property
    def buffers(self) -> Tuple[Buffer, ...]:
        """The table of buffers."""
        return tuple(
            Buffer(
                name=row["name"],
                kind=row["kind"],
                role=row["role"],
                tensor=row.get("tensor"),
                unit=row.get("unit"),
                layer=row.get("layer"),
                micro_step=row.get("micro_step"),
                format=row["format"],
                sharded=_axes(row["sharded"]),
                numel=row["numel"],
                tier=row["tier"],
                persistent=row["persistent"],
            )
            for row in self._json["buffers"]
        )

    @cached_property
    def actions(self) -> Tuple[Action, ...]:
        """The actions in the order in which the host issues them."""
        words = self._schedule.describe()
        return tuple(
            Action(
                number=number,
                lane=row["lane"],
                operation=row["operation"],
                layer=row.get("layer"),
                micro_step=row.get("micro_step"),
                over=row.get("over"),
                reads=tuple(row["reads"]),
                writes=tuple(row["writes"]),
                after=tuple(row["after"]),
                previous=tuple(row["previous"]),
                peer=row.get("to", row.get("from")),
                text=words[number],
            )
            for number, row in enumerate(self._json["actions"])
        )


Schedules = Union[Schedule, Sequence[Schedule]]


def parse_schedules(text: str) -> List[Schedule]:
    """The schedules of all pipeline ranks, as `tessera plan --format schedule` prints them."""
    return [Schedule._of(one) for one in _core.parse_schedules(text)]


def validate(schedule: Schedules) -> List[Violation]:
    """Proves a step safe to execute, without knowing any strategy; empty if it is.

    `schedule`: of one pipeline rank, or a list of those of all, which must fit together.
    """
    schedules = [schedule] if isinstance(schedule, Schedule) else list(schedule)
    return [Violation(*one) for one in _core.validate([one._schedule for one in schedules])]


def account(schedule: Schedule) -> Dict[str, Any]:
    """What one rank's step sends, copies and holds, in bytes, exactly.

    Keys: calls and sent_bytes by kind of collective; copied_bytes; tier_copy_bytes; disk_copy_bytes;
    memory and host_memory by category, of what stays from the step's start to its end (activations
    depend on the layers: see Plan.peak_bytes); disk_bytes; gradient_sum_bytes.
    """
    return _core.account(schedule._schedule)
