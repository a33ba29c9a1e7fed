"""Sharded training whose step is a value: plan, validate, account, simulate, execute.

    import tessera

    plan = tessera.plan(model="gpt2-124m", ranks=8, strategy="zero2")
    print(plan.peak_bytes["total"], plan.schedule.actions[0])

    with tessera.Session(data="notes.txt", model="gpt2-tiny", ranks=4, steps=100) as session:
        for record in session:
            print(record.step, record.loss)

Settings are the flags of the program `tessera` as keywords: `--micro-batch 4` is `micro_batch=4`.
`settings()` lists them. Errors are `tessera.Error` and the classes below it, with the library's text.
"""

from ._answers import (
    MemoryEstimate,
    Plan,
    Setting,
    Simulation,
    Sweep,
    estimate_memory,
    explain,
    plan,
    settings,
    simulate,
    sweep,
)
from ._core import (
    ConfigError,
    Error,
    EvaluationRecord,
    FileError,
    InvalidArgumentError,
    NotFoundError,
    OutOfMemoryError,
    StepRecord,
    TimeoutError,
    UnavailableError,
    __version__,
)
from ._schedule import (
    Action,
    Buffer,
    Schedule,
    Violation,
    account,
    parse_schedules,
    validate,
)
from ._session import Piece, Session, StateTensor

__all__ = [
    "Action",
    "Buffer",
    "ConfigError",
    "Error",
    "EvaluationRecord",
    "FileError",
    "InvalidArgumentError",
    "MemoryEstimate",
    "NotFoundError",
    "OutOfMemoryError",
    "Piece",
    "Plan",
    "Schedule",
    "Session",
    "Setting",
    "Simulation",
    "StateTensor",
    "StepRecord",
    "Sweep",
    "TimeoutError",
    "UnavailableError",
    "Violation",
    "__version__",
    "account",
    "estimate_memory",
    "explain",
    "parse_schedules",
    "plan",
    "settings",
    "simulate",
    "sweep",
    "validate",
]
