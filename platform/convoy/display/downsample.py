"""Fewer points for a curve, without losing what the eye looks for."""

import math
from collections.abc import Sequence

Point = tuple[float, float]

MAX_POINTS = 300


def finite(points: Sequence[Point]) -> list[Point]:
    """Points whose value can be drawn."""
    return [p for p in points if math.isfinite(p[1])]


def downsample(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most `limit` (at least 4) of the points, in order: first, last, and each bucket's lowest and highest.

    Buckets hold equal numbers of points, so every extreme of the curve survives at its own place.
    """
    if limit < 4:
        raise ValueError(f"limit = {limit}: must be at least 4")
    if len(points) <= limit:
        return list(points)
    inner = points[1:-1]
    buckets = (limit - 2) // 2
    kept = [points[0]]
    for b in range(buckets):
        bucket = inner[b * len(inner) // buckets : (b + 1) * len(inner) // buckets]
        low, high = min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])
        kept.extend([low] if low is high else sorted((low, high), key=lambda p: p[0]))
    kept.append(points[-1])
    return kept
