"""The numbers of rows that tuned tables have entries for; tuner and run time share them."""

from __future__ import annotations

from bisect import bisect_left

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)


def bucket_of(m: int) -> int:
    """Return the bucket nearest to ``m`` rows by ratio, the larger one of two equally near.

    Beyond the largest bucket it is that one.
    """
    at = bisect_left(BUCKETS, m)
    if at == len(BUCKETS):
        return BUCKETS[-1]
    if at == 0:
        return BUCKETS[0]
    below, above = BUCKETS[at - 1], BUCKETS[at]
    return above if m * m >= below * above else below
