"""Interning of call chains, against a dictionary."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelib.sources.perf import frames


def _expected(chains):
    known, stacks = {}, []
    for chain in chains:
        if chain and chain not in known:
            known[chain] = len(known)
        stacks.append(known.get(chain, -1))
    return stacks, known


def _flat(chains):
    event = np.array([at for at, chain in enumerate(chains) for _ in chain], dtype=np.int64)
    return event, np.array([f for chain in chains for f in chain], dtype=np.int64)


def _check(chains):
    stacks, known = _expected(chains)
    found, rows = frames.intern(*_flat(chains), len(chains))
    # numbers are free, the classes are not: same chain, same number
    assert [s >= 0 for s in found] == [s >= 0 for s in stacks]
    assert len(set(zip(found.tolist(), stacks, strict=True))) == len(set(stacks))
    made = {}
    for stack, depth, frame in rows.iter_rows():
        made.setdefault(stack, []).append(frame)
        assert depth == len(made[stack]) - 1
    assert sorted(map(tuple, made.values())) == sorted(known)
    for at, chain in enumerate(chains):
        assert not chain or tuple(made[int(found[at])]) == chain


@given(st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=30))
def test_equal_chains_share_a_stack_and_others_do_not(chains):
    _check(chains)


def test_chains_that_share_a_hash_are_told_apart(monkeypatch):
    honest = frames._hashes
    monkeypatch.setattr(
        frames, "_hashes", lambda f, p, s, salt: honest(f, p, s, salt) % np.uint64(2 if salt < 3 else 2**63)
    )
    _check([(1, 2), (2, 1), (1,), (1, 2), (3, 3, 3), (), (2, 1)])


def test_hashes_that_never_part_are_refused(monkeypatch):
    monkeypatch.setattr(frames, "_hashes", lambda f, p, s, salt: np.zeros(len(s), dtype=np.uint64))
    with pytest.raises(AssertionError):
        frames.intern(*_flat([(1,), (2,)]), 2)
