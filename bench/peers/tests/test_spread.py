"""Quantiles by the nearest rank."""

from __future__ import annotations

import random

import pytest

from spread import Spread, quantile, repeats, spread


def test_a_spread_is_of_values_that_were_measured(rng: random.Random) -> None:
    for _ in range(50):
        values = [rng.random() for _ in range(rng.randint(1, 40))]
        s = spread(values)
        assert {s.p25, s.median, s.p75} <= set(values)
        assert s.p25 <= s.median <= s.p75
        assert s.n == len(values)
        assert sum(v <= s.median for v in values) >= len(values) / 2
        assert sum(v >= s.median for v in values) >= len(values) / 2


def test_known_values() -> None:
    assert spread([4, 1, 3, 2]) == Spread(1, 2, 3, 4)
    assert spread([5.0]) == Spread(5, 5, 5, 1)
    assert [quantile(range(1, 101), q) for q in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1.0], 1.1), ([1.0], -0.1)])
def test_what_is_no_quantile(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, q)


def test_repeats_fill_a_part_within_bounds() -> None:
    assert repeats(0.01, 0.2) == 20
    assert repeats(1, 0.2) == 2
    assert repeats(1e-6, 0.2) == 2000
    assert repeats(0, 0.2) == 2
