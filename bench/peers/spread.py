"""Medians with their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], q: float) -> float:
    """By the nearest rank: one of the values, and so a time that was measured.

    Raises:
        ValueError: there are no values, or q is not in 0..1.
    """
    if not values or not 0 <= q <= 1:
        raise ValueError(f"quantile {q} of {len(values)} values")
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


@dataclass(frozen=True)
class Spread:
    """The quarter, the half and three quarters of n values."""

    p25: float
    median: float
    p75: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75), len(values))


def repeats(took_s: float, part_s: float, least: int = 2, most: int = 2000) -> int:
    """How many transfers of so many seconds each are a part of a round that should last part_s."""
    return least if took_s <= 0 else min(max(int(part_s / took_s), least), most)
