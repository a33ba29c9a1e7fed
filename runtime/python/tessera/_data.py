"""A run's data as arrays of a program's own."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


def _array(values: Any, what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{what} are token ids, integers; this array is of {array.dtype}")
    if array.dtype.kind == "u" or array.dtype.itemsize > 4:
        limits = np.iinfo(np.int32)
        if array.size and (array.max() > limits.max or array.min() < limits.min):
            raise ValueError(f"{what} have the id {array.max()}, which does not fit 32 bits")
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{what} are arrays of one sample or of several, (L) or (N, L); this one is {array.shape}"
        )
    return np.ascontiguousarray(np.atleast_2d(array), dtype=np.int32)


def samples_of(item: Any, length: int) -> Tuple[Tokens, Tokens]:
    """The inputs and targets, (N, length), of one item of a data source.

    `item`: token ids (length + 1) or (N, length + 1), of which each predicts the next; or a pair
    (inputs, targets) of (length) or (N, length) each, where a target of -100 does not count.
    """
    if isinstance(item, (tuple, list)) and len(item) == 2 and np.ndim(item[0]) > 0:
        inputs, targets = _array(item[0], "inputs"), _array(item[1], "targets")
        if inputs.shape != targets.shape or inputs.shape[1] != length:
            raise ValueError(
                f"inputs of {inputs.shape} and targets of {targets.shape} are no samples of {length} "
                f"tokens each (sequence_length)"
            )
        return inputs, targets
    tokens = _array(item, "samples")
    if tokens.shape[1] != length + 1:
        raise ValueError(
            f"an array of {tokens.shape} is no samples: each has sequence_length + 1 = {length + 1} "
            f"tokens, or is a pair of inputs and targets"
        )
    return tokens[:, :-1], tokens[:, 1:]


def all_samples(data: Iterable[Any], length: int) -> Tuple[Tokens, Tokens]:
    """Every sample of a source that ends."""
    parts = [samples_of(item, length) for item in data]
    if not parts:
        raise ValueError("the data to evaluate on have no samples")
    return _joined([part[0] for part in parts]), _joined([part[1] for part in parts])


def _joined(parts: List[Tokens]) -> Tokens:
    return np.ascontiguousarray(np.concatenate(parts), dtype=np.int32)


class SampleStream:
    """The samples of an iterable, one step's after the other.

    What can be iterated again begins anew when it is at its end; a generator ends the run.
    """

    def __init__(self, data: Iterable[Any], length: int):
        self._data = data
        self._length = length
        self._items: Iterator[Any] = iter(data)
        self._again = self._items is not data
        self._inputs: List[Tokens] = []
        self._targets: List[Tokens] = []
        self._held = 0

    def _pull(self) -> bool:
        """Takes one more item; False at the end."""
        try:
            item = next(self._items)
        except StopIteration:
            if not self._again:
                return False
            self._items = iter(self._data)
            try:
                item = next(self._items)
            except StopIteration:
                raise ValueError("the data have no samples") from None
        inputs, targets = samples_of(item, self._length)
        self._inputs.append(inputs)
        self._targets.append(targets)
        self._held += len(inputs)
        return True

    def take(self, count: int) -> Optional[Tuple[Tokens, Tokens]]:
        """The next `count` samples; None if the data end before."""
        while self._held < count:
            if not self._pull():
                return None
        inputs, targets = _joined(self._inputs), _joined(self._targets)
        self._inputs, self._targets = [inputs[count:]], [targets[count:]]
        self._held -= count
        return inputs[:count], targets[:count]

    def skip(self, count: int) -> None:
        """Leaves samples out that an earlier run has had."""
        while count > 0:
            taken = min(count, max(self._held, 1))
            if self.take(taken) is None:
                raise ValueError(
                    f"the data end {count} samples before the place at which the run goes on"
                )
            count -= taken
