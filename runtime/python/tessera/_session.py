"""A training run under a loop of one's own."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import _core
from ._core import EvaluationRecord, StepRecord
from ._data import SampleStream, all_samples
from ._schedule import Schedule
from ._settings import texts_of

Path = Union[str, "os.PathLike[str]"]
Data = Union[Path, Iterable[Any]]

_DTYPES: Dict[str, Any] = {
    "fp32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
}


class Piece(NamedTuple):
    """A stretch of one parameter's elements, in row-major order, within a tensor of state."""

    parameter: str
    begin: int  #: the first element of the parameter; blocks, where the tensor is of blocks
    end: int  #: behind the last
    offset: int  #: where the first one is in the tensor


class StateTensor(NamedTuple):
    """A tensor that one rank keeps from step to step: its part of a unit's flat parameter."""

    name: str  #: "h.3.parameter", "h.3.master", "h.3.first-moment", ...
    role: str  #: "parameter", "master", "optimizer"
    tensor: str  #: of an optimizer's: which; else ""
    unit: str
    rank: int
    array: NDArray[Any]  #: (elements), read-only; what the run works on, or a copy
    format: str  #: "fp32", "bf16", ...
    block: int  #: elements of the flat parameter for each one of the array
    tier: str  #: "device", "host" or "disk"
    sharded: str  #: the mesh axes along which it is cut, "none" if it is whole
    first: int  #: where the array begins in the unit's flat parameter
    pieces: Tuple[Piece, ...]  #: what it has of each parameter; padding is in none
    is_copy: bool  #: True on a GPU or on disk; else the next step changes the array


class Session:
    """A training run: `for record in session` does its steps.

        with tessera.Session(data="notes.txt", ranks=4, strategy="zero2", steps=100) as session:
            for record in session:
                print(record.step, record.loss)

    Settings are the flags of `tessera train` as keywords, and the steps are the program's: the same
    bits, and after them the evaluations (eval_every, patience), checkpoints (save, save_every, ...)
    and logs (log, csv, tensorboard) that the settings ask for. A launcher's processes (torchrun,
    mpirun, srun) share a run: each makes the same session and calls the same methods.

    Ranks are threads, and need no interpreter: no lock of Python is held in a step. Ctrl-C raises
    KeyboardInterrupt when the step that has begun is over, and the session can go on or be saved; a
    second one gives the step up, and the session with it.
    """

    def __init__(
        self,
        data: Optional[Data] = None,
        *,
        eval_data: Optional[Data] = None,
        config: Optional[Path] = None,
        **settings: Any,
    ):
        """Plans the run, starts its ranks and initialises or loads the parameters.

        data: files, as `--data` names them, or an iterable of arrays of token ids: samples of
            (sequence_length + 1) or (N, sequence_length + 1) tokens, or pairs (inputs, targets) of
            (sequence_length) or (N, sequence_length), where a target of -100 does not count. It is
            read in order, in this thread, between steps; what can be iterated again begins anew at
            its end, a generator ends the run. Every process of a run iterates the same samples.
        eval_data: the same, to evaluate on; an iterable is read at once, to its end.
        config: a file of settings, ours, Accelerate's or DeepSpeed's; keywords win over it.
        settings: model, ranks, strategy, steps, ...: see tessera.settings().

        Raises ConfigError on settings that do not fit together, OutOfMemoryError before anything
        is allocated, and the classes of Error for what fails.
        """
        values = dict(settings)
        given: Optional[Iterable[Any]] = None
        if data is None or isinstance(data, (str, os.PathLike)):
            values["data"] = data
        else:
            given = data
        evaluation = None
        if eval_data is None or isinstance(eval_data, (str, os.PathLike)):
            values["eval_data"] = eval_data
        else:
            evaluation = partial(all_samples, eval_data)
        path = "" if config is None else os.fspath(config)
        self._session = _core.Session(texts_of(values), path, given is not None, evaluation)
        self._stream: Optional[SampleStream] = None
        self._is_over = False
        length, _, self._samples_per_step = self._session.sizes
        self._last_step: int = self._session.settings["steps"]
        if given is not None:
            self._stream = SampleStream(given, length)
            self._stream.skip(self._session.samples)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __iter__(self) -> Iterator[StepRecord]:
        while (record := self.step()) is not None:
            yield record

    def step(self) -> Optional[StepRecord]:
        """One optimizer step, and what the settings want after it; None when the run is over.

        The record has step, loss, gradient_norm, learning_rate, tokens, seconds, ... At the end of
        the run the last evaluation and checkpoint are made, and the log gets its summary; after a
        loop that ends before, finish() does that.
        """
        if self._is_over:
            return None
        if self._stream is not None and self.steps < self._last_step:
            samples = self._stream.take(self._samples_per_step)
            if samples is None:
                self.finish()
                return None
            self._session.give(*samples)
        record = self._session.step()
        if record is None:
            self.finish()
        return record

    def finish(self) -> None:
        """The last evaluation and checkpoint that the settings ask for; no step may follow."""
        if not self._is_over:
            self._is_over = True
            self._session.finish()

    def stop(self) -> None:
        """No further step, in any process of the run; safe from any thread."""
        self._session.stop()

    def close(self) -> None:
        """Ends the ranks and gives their memory back, unless arrays of state() still show it."""
        self._session.close()

    @property
    def steps(self) -> int:
        """Optimizer steps so far, those of the run that this one goes on from included."""
        return self._session.steps

    @property
    def settings(self) -> Dict[str, Any]:
        """Every setting as it has come to be."""
        return self._session.settings

    @property
    def schedules(self) -> List[Schedule]:
        """What each pipeline rank does in a step."""
        return [Schedule._of(one) for one in self._session.schedules]

    @property
    def notes(self) -> List[str]:
        """Sentences on how the run goes."""
        return self._session.notes()

    @property
    def evaluation(self) -> Optional[EvaluationRecord]:
        """The evaluation that followed the last step, if eval_every asked for one."""
        return self._session.evaluation

    def evaluate(self) -> EvaluationRecord:
        """The mean loss on eval_data, without dropout; the same bits for any strategy and ranks."""
        return self._session.evaluate()

    def save(self, folder: Path) -> str:
        """Writes a checkpoint of the run as it is now, as step_N in `folder`; returns its path.

        `resume=` goes on from it, at any number of ranks. "" but in the first process.
        """
        return self._session.save(os.fspath(folder))

    def parameters(self) -> Dict[str, NDArray[np.float32]]:
        """The fp32 master weights of all ranks by name, whole and copied."""
        return {
            one.name: np.frombuffer(memoryview(one), dtype=np.float32).reshape(one.shape)
            for one in self._session.parameters()
        }

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Overwrites all parameters; the optimizer's state stays as it is.

        Raises InvalidArgumentError if one is missing or of another size.
        """
        self._session.set_parameters(
            [
                (name, np.ascontiguousarray(values, dtype=np.float32).reshape(-1))
                for name, values in parameters.items()
            ]
        )

    def state(self) -> Dict[str, StateTensor]:
        """The tensors of this process's first rank, by name: see states()."""
        states = self.states()
        return states[min(states)]

    def states(self) -> Dict[int, Dict[str, StateTensor]]:
        """The tensors that each rank of this process keeps from step to step, by rank and name.

        Of ranks on the CPU the arrays are views of the run's own memory, read-only; the next step
        changes them. From a GPU or from disk they are copied.
        """
        states: Dict[int, Dict[str, StateTensor]] = {}
        for held in self._session.state():
            states.setdefault(held.rank, {})[held.name] = StateTensor(
                name=held.name,
                role=held.role,
                tensor=held.tensor,
                unit=held.unit,
                rank=held.rank,
                array=np.frombuffer(memoryview(held), dtype=_DTYPES[held.format]),
                format=held.format,
                block=held.block,
                tier=held.tier,
                sharded=held.sharded,
                first=held.first,
                pieces=tuple(Piece(*piece) for piece in held.pieces),
                is_copy=held.is_copy,
            )
        return states
