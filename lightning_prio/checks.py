"""Checks of user input: each names the argument, the value and the way out."""

from __future__ import annotations

import math
from collections.abc import Sequence


def check_integer(argument: str, value: object, at_least: int) -> None:
    """Raise ValueError unless `value` is an int (not a bool) of at least `at_least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{argument} must be an integer of at least {at_least}, got {value!r}")


def check_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_positive(argument: str, value: object, unit: str) -> None:
    """Raise ValueError unless `value` is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{argument} must be a finite number of {unit} above 0, got {value!r}")
