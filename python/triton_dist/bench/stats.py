# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Medians over rounds and what they are worth."""
import math
import statistics
from dataclasses import dataclass
from typing import Sequence


@dataclass(frozen=True)
class Estimate:
    """A median over rounds with its 95 % confidence interval."""
    value: float
    low: float
    high: float


def interval_rank(count: int) -> int:
    """r such that the r-th smallest and the r-th largest of `count` samples enclose the median with 95 % confidence.

    The samples below the median are binomial(count, 1/2), so no shape of the distribution is assumed. From fewer than
    six samples 95 % cannot be had: 1, the whole range.
    """
    outside, rank = 0.0, 0
    while rank < (count + 1) // 2:
        outside += 2 * math.comb(count, rank) * 0.5**count
        if outside > 0.05:
            break
        rank += 1
    return max(1, rank)


def estimate(samples: Sequence[float]) -> Estimate:
    """The median of one sample a round, and its interval by order statistics."""
    if not samples:
        raise ValueError("expected at least one round, found none")
    ordered, rank = sorted(samples), interval_rank(len(samples))
    return Estimate(statistics.median(ordered), ordered[rank - 1], ordered[-rank])


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Estimate of above / below, divided round by round: what drifts from round to round cancels."""
    if len(above) != len(below):
        raise ValueError(f"expected equal numbers of rounds, found {len(above)} and {len(below)}")
    return estimate([a / b for a, b in zip(above, below)])


def smallest(*series: Sequence[float]) -> list:
    """Round by round, the smallest of the series."""
    return [min(values) for values in zip(*series)]


def largest(*series: Sequence[float]) -> list:
    """Round by round, the largest of the series."""
    return [max(values) for values in zip(*series)]


def geomean_of(figures: Sequence[Estimate]) -> Estimate:
    """The geometric mean of medians that were measured one after another, with its 95 % interval.

    The distances of each median from its bounds, on the log scale, are added in quadrature (MOVER, Zou and Donner 2008):
    the noise of different shapes is independent, since their rounds were run at different times. This needs only what a row
    stores, keeps skewed intervals skewed, and gives back the interval of a single figure.
    """
    middle = statistics.fmean(math.log(f.value) for f in figures)
    down, up = (math.hypot(*(math.log(f.value / bound(f)) for f in figures)) / len(figures)
                for bound in (lambda f: f.low, lambda f: f.high))
    return Estimate(math.exp(middle), math.exp(middle - down), math.exp(middle + up))


def geomean(values: Sequence[float]) -> float:
    """The geometric mean of positive values."""
    return math.exp(statistics.fmean(math.log(value) for value in values))
