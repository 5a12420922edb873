"""The pictures of docs/operate/: the live page in chromium, the screen of `windowing run`, what `windowing explain` draws.

    python tools/screenshots.py             all three, from real runs of the topology below
    python tools/screenshots.py run         one of page, run, explain

The page needs chromium on the PATH. Pictures differ from run to run in times and latencies alone.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from windowing import InputSpout, TopologyBuilder, bolt, millis, seconds, sliding, tumbling
from windowing.cli.running import screen
from windowing.errors import ReportedFailedException
from windowing.local import LocalCluster, explain
from windowing.monitoring import ClusterMetrics, serve_page

TO = Path(__file__).parents[1] / "docs" / "operate"
TITLES = ["to be or not to be", "that is the question", "whether <b>tis</b> nobler", "in the mind to suffer"]
ROUNDS, EVERY_MS = 40, 150


@bolt(output="word string, at long")
def split(row: Any) -> list[tuple[str, int]]:
    return [(word, row["at"]) for word in row["line"].split()]


@tumbling(seconds(1), timestamp="at", lag=millis(200), late_stream="late", output="words long, longest string")
def every_second(window: Any) -> tuple[int, str]:
    words = [row["word"] for row in window.get()]
    return len(words), max(words, key=len)


@bolt(output="text string")
def report(row: Any) -> str:
    if row["words"] % 7 == 0:
        raise ReportedFailedException("a number that nobody expects")
    return f"{row['words']} words"


@bolt(output="n long")
def count_late(row: Any) -> int:
    return len(row["word"])


def topology() -> Any:
    builder = TopologyBuilder("lines").configure({"windowing.max.attempts": 1})
    builder.set_spout("lines", InputSpout("line string, at long"))
    builder.set_bolt("split", split, 2).shuffle_grouping("lines")
    builder.set_bolt("every_second", every_second).global_grouping("split")
    builder.set_bolt("report", report).shuffle_grouping("every_second")
    builder.set_bolt("count_late", count_late).shuffle_grouping("every_second", "late")
    return builder.build()


def batches() -> Iterator[list[tuple[str, int]]]:
    """Yield some rows a turn, by the clock; now and then one comes too late."""
    for turn in range(ROUNDS):
        now_ms = int(time.time() * 1000)
        rows = [(TITLES[(turn + each) % len(TITLES)], now_ms - 40 * each) for each in range(6)]
        yield [*rows, ("what came late", now_ms - 4000)] if turn % 9 == 8 else rows
        time.sleep(EVERY_MS / 1000)


def shot(kind: str, make: Any) -> None:
    """Run the topology over some seconds, and take the picture while it has windows open."""
    with LocalCluster(topology(), batches={}) as cluster:
        metrics = ClusterMetrics(cluster)
        with serve_page(metrics.now, cluster.topology) as page:
            for rows in batches():
                cluster.run_batch({"lines": rows})
            make(page.url, metrics)
    print(kind)


def take_page(url: str, metrics: ClusterMetrics) -> None:
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("there is no chromium on the PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--virtual-time-budget=3000", "--hide-scrollbars", "--window-size=1120,1000"]
        command += [f"--screenshot={TO / 'page.png'}", f"{url}#once"]
        subprocess.run(command, check=True, capture_output=True, timeout=90)


def take_run(url: str, metrics: ClusterMetrics) -> None:
    console = Console(record=True, width=124, file=io.StringIO())
    console.print(screen(metrics))
    picture = console.export_svg(title="windowing run jobs.py:topology")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # they are loaded from a network
    (TO / "run.svg").write_text(re.sub(r"terminal-\d+", "terminal", picture), encoding="utf-8")


def take_explain() -> None:
    """Draw the run of the example above the picture, in docs/reference/command_line.md."""

    @sliding(seconds(10), seconds(5), timestamp="at", late_stream="late", output="words long")
    def words(window: Any) -> int:
        return len(window)

    rows = [{"word": word, "at": 1_000 * at} for word, at in [("to", 1), ("be", 7), ("or", 12), ("not", 3)]]
    (TO / "explain.svg").write_text(explain(words, rows).svg(), encoding="utf-8")
    print("explain")


def main() -> None:
    asked = sys.argv[1:] or ["page", "run", "explain"]
    if "page" in asked:
        shot("page", take_page)
    if "run" in asked:
        shot("run", take_run)
    if "explain" in asked:
        take_explain()


if __name__ == "__main__":
    main()
