"""Which bucket of M a call falls into."""

from __future__ import annotations

import itertools
import math

from gemmsmith.buckets import BUCKETS, bucket_of


def test_buckets_are_their_own_and_beyond_the_ends_are_the_ends() -> None:
    assert [bucket_of(m) for m in BUCKETS] == list(BUCKETS)
    assert [bucket_of(m) for m in (8193, 70_000, 1 << 40)] == [8192] * 3


def test_the_nearest_by_ratio_and_the_larger_of_equally_near() -> None:
    assert [bucket_of(m) for m in (3, 5, 6, 7, 11, 12)] == [4, 4, 8, 8, 8, 16]
    # 2: between 1 and 4 there is a bucket; 16 between 8 and 32 too; ties lie at exact roots
    assert [bucket_of(m) for m in (78, 79, 110, 111)] == [64, 96, 96, 128]
    assert bucket_of(1448) == 1024
    assert bucket_of(1449) == 2048
    for below, above in itertools.pairwise(BUCKETS):
        root = math.isqrt(below * above)
        if root * root == below * above:
            assert bucket_of(root) == above


def test_a_larger_m_never_falls_into_a_smaller_bucket() -> None:
    found = [bucket_of(m) for m in range(1, 9000)]
    assert found == sorted(found)
    assert set(found) == set(BUCKETS)
