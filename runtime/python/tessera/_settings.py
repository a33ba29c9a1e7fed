"""Settings as keywords, turned into the texts that the library's table of settings reads."""

from __future__ import annotations

import os
from typing import Any, Iterable, List, Mapping, Tuple

Texts = List[Tuple[str, str]]


def text_of(value: Any) -> str:
    """The text of a value as a flag would have it: True is "true", 0.5 is "0.5"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    return str(value)


def texts_of(settings: Mapping[str, Any]) -> Texts:
    """The settings that are given; None is one that is not."""
    return [(name, text_of(value)) for name, value in settings.items() if value is not None]


def is_list(value: Any) -> bool:
    """Whether a setting's value is several of them."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, os.PathLike))


def split_lists(settings: Mapping[str, Any]) -> Tuple[Texts, List[Tuple[str, List[str]]]]:
    """Settings with one value, and those with several."""
    single = {name: value for name, value in settings.items() if not is_list(value)}
    several = [
        (name, [text_of(item) for item in value])
        for name, value in settings.items()
        if is_list(value)
    ]
    return texts_of(single), several
