"""A Trident cluster is killed by SIGKILL around its writes: states, windows and sinks equal those of a run without a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.dying import in_a_child
from tests.local.trident_job import main, topology
from windowing.local import TridentCluster

ROOT = Path(__file__).parents[2]


def run_job(folder: Path, kill_at: int) -> int:
    """Run the job in a process; return its exit code."""
    return in_a_child(lambda: main(str(folder / "all.db"), str(folder / "sink"), kill_at))


def found(folder: Path) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the states, and the rows of each sink by txid; of a txid that was written twice the last rows count."""
    lines = [json.loads(line) for line in (folder / "sink").read_text(encoding="utf-8").splitlines()]
    with TridentCluster(topology(str(folder / "all.db"))) as cluster:
        states = {id: cluster.values(id) for id in cluster.states}
    return states, {(name, txid): sorted(rows) for name, txid, rows in lines}


def test_the_example_that_stops_in_the_middle_counts_each_word_once() -> None:
    command = [sys.executable, str(ROOT / "examples" / "trident_word_count.py")]
    told = subprocess.run(command, cwd=ROOT, timeout=90, check=True, capture_output=True, text=True).stdout
    assert told.splitlines()[:2] == [
        "first run: 2 batches committed, then it ends",
        "second run: 4 batches, failed attempts: 1",
    ]


def test_after_kills_around_its_writes_a_run_ends_with_the_same_states_and_sinks(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    assert run_job(tmp_path / "alone", 0) == 0
    expected = found(tmp_path / "alone")
    assert expected[0]["state1"][("be",)] == 3
    for kills in ((9, 24, 4), (16, 13, 22)):
        killed = tmp_path / f"killed-{kills[0]}"
        killed.mkdir()
        for kill_at in kills:
            assert run_job(killed, kill_at) == -signal.SIGKILL
        assert run_job(killed, 0) == 0
        assert found(killed) == expected
