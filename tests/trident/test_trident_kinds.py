"""Which pairs of spout and state are exactly-once, and the errors for the others."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from windowing.errors import ConfigError
from windowing.trident.kinds import (
    FIRST_TXID,
    GUARANTEES,
    Guarantee,
    SpoutKind,
    StateType,
    TransactionAttempt,
    check_guarantee,
)

ONCE, MORE, NONE = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.BEST_EFFORT
NON, TRANSACTIONAL, OPAQUE = SpoutKind.NON_TRANSACTIONAL, SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE


def test_the_exactly_once_pairs_are_those_of_storms_manual():
    assert {pair for pair, given in GUARANTEES.items() if given is ONCE} == {
        (TRANSACTIONAL, StateType.TRANSACTIONAL),
        (TRANSACTIONAL, StateType.OPAQUE),
        (OPAQUE, StateType.OPAQUE),
    }
    assert set(GUARANTEES) == set(product(SpoutKind, StateType))


READS = {
    TRANSACTIONAL: ["ab|cd"],
    OPAQUE: ["ab|cd", "abc|d", "b|acd"],
    NON: ["ab|cd", "abc|d", "b|acd", "ab|bcd"],
}
"""The second attempt at batch 1, and batch 2: the same tuples; each tuple in one of them; each in at least one."""

KEYS = {"a": "x", "b": "y", "c": "x", "d": "y"}


def counted(state: StateType, reads: str) -> dict[str, int]:
    """Return the counts per key after an attempt at batch 1 that wrote only the count of `a`, a second attempt, and batch 2.

    The slow model of a state: for each key (txid of the last change, now, before it).
    """
    rows: dict[str, tuple[int, int, int]] = {}
    second, after = reads.split("|")
    for txid, batch in ((1, "a"), (1, second), (2, after)):
        if state is StateType.OPAQUE:
            rows = {key: (seen, before if seen == txid else now, before) for key, (seen, now, before) in rows.items()}
        for key, more in Counter(KEYS[each] for each in batch).items():
            seen, now, _ = rows.get(key, (0, 0, 0))
            if state is not StateType.TRANSACTIONAL or seen != txid:
                rows[key] = (txid, now + more, now)
    return {key: now for key, (_, now, _) in rows.items()}


@pytest.mark.parametrize("state", StateType)
@pytest.mark.parametrize("kind", [NON, TRANSACTIONAL, OPAQUE])
def test_the_guarantee_table_equals_the_counts_after_a_partly_failed_batch(kind, state):
    results = [counted(state, reads) for reads in READS[kind]]
    lacks = any(min(result["x"], result["y"]) < 2 for result in results)
    repeats = any(max(result["x"], result["y"]) > 2 for result in results)
    assert (lacks, repeats) == {ONCE: (False, False), MORE: (False, True), NONE: (True, True)}[GUARANTEES[kind, state]]


def test_a_pair_that_is_not_exactly_once_is_refused_with_the_fix():
    with pytest.raises(ConfigError) as refused:
        check_guarantee(OPAQUE, StateType.TRANSACTIONAL, names=("kafka", "counts"))
    assert str(refused.value) == (
        "[CONFIG] kafka is opaque and counts is transactional: tuples count any number of times, wanted exactly once; give it an "
        "opaque state, or say accept=Guarantee.BEST_EFFORT"
    )
    with pytest.raises(
        ConfigError, match=r"give it a transactional or opaque state, or say accept=Guarantee\.AT_LEAST_ONCE"
    ):
        check_guarantee(TRANSACTIONAL, StateType.NON_TRANSACTIONAL)
    with pytest.raises(ConfigError, match="read it through a transactional or opaque spout"):
        check_guarantee(NON, StateType.OPAQUE)


@pytest.mark.parametrize(("kind", "state", "accept"), list(product(SpoutKind, StateType, Guarantee)))
def test_a_weaker_guarantee_must_be_accepted_by_name(kind, state, accept):
    strength = [NONE, MORE, ONCE]
    given = GUARANTEES[kind, state]
    if strength.index(given) >= strength.index(accept):
        assert check_guarantee(kind, state, accept=accept) is given
    else:
        with pytest.raises(ConfigError, match=rf"accept=Guarantee\.{given.name}"):
            check_guarantee(kind, state, accept=accept)


def test_the_documentation_page_has_the_guarantee_table():
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "transactions.md").read_text(encoding="utf-8")
    words = {ONCE: "**exactly once**", MORE: "at least once", NONE: "any number of times"}
    for kind in SpoutKind:
        row = " | ".join([f"| {kind.value} spout", *(words[GUARANTEES[kind, state]] for state in StateType)])
        assert f"{row} |\n" in page


def test_attempts_are_ordered_by_txid_and_then_by_attempt():
    first = TransactionAttempt(FIRST_TXID, 0)
    assert sorted([TransactionAttempt(2, 0), first.next(), first]) == [first, first.next(), TransactionAttempt(2, 0)]
    assert [str(each) for each in (first, first.next())] == ["1:0", "1:1"]
