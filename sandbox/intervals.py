"""Intervals by bootstrap over fresh process pairs, never over calls alone: calls of one process share its luck."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sandbox.evaluation import Interval

RESAMPLES = 4000


def interval(groups: Sequence[Sequence[float]], of: str, level: float = 0.95) -> Interval:
    """Median of samples grouped by process, with a percentile interval of `level`.

    Two-stage bootstrap: processes are drawn with replacement, then samples inside each; the statistic is the median over
    processes of the median within a process. With one process only its own samples can be drawn: say so in `processes`.
    """
    arrays = [np.asarray(g, dtype=np.float64) for g in groups if len(g)]
    if not arrays:
        raise ValueError(f"no samples for '{of}'")
    rng = np.random.default_rng(0)  # the same samples give the same interval
    centre = float(np.median([np.median(a) for a in arrays]))
    draws = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        chosen = rng.integers(0, len(arrays), len(arrays))
        draws[i] = np.median([np.median(arrays[c][rng.integers(0, arrays[c].size, arrays[c].size)]) for c in chosen])
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return Interval(median=centre, low=min(float(low), centre), high=max(float(high), centre),
                    pairs=sum(a.size for a in arrays), processes=len(arrays), of=of)  # fmt: skip


def ratios(pairs: Sequence[Sequence[tuple[float, float]]]) -> list[list[float]]:
    """Per process, rival seconds over candidate seconds of each interleaved pair (candidate, rival)."""
    return [[rival / candidate for candidate, rival in group] for group in pairs]
