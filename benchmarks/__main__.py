"""The command: python -m benchmarks [SUITE ...], and python -m benchmarks --page.

make bench                       every suite that runs after `make setup`
make bench ONLY=core,growth      these suites
python -m benchmarks --page      docs/benchmarks.md and its pictures, from benchmarks/results/
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks import records
from benchmarks.suites import SUITES


def main(arguments: list[str] | None = None) -> None:
    """Run the selected suites, or write the page."""
    options = _options(arguments)
    names = [name for given in options.suites for name in given.split(",") if name]
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        sys.exit(f"there is no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    if options.page:
        from benchmarks.page import write

        print(f"written: {write(options.results)}")
        return
    for name in names or [suite.name for suite in SUITES.values() if not suite.asked]:
        suite = SUITES[name]
        print(f"\n== {name}: {suite.about}", flush=True)
        say = partial(print, flush=True)
        run = suite.run(
            options.scale, options.rounds, say, partial(records.save, folder=options.results), options.match
        )
        print(f"{run.seconds:.0f} s; results in {options.results}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure; the method is in README.md.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; without one, all")
    parser.add_argument("--rounds", type=int, default=5, help="how often the contenders take turns (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="the part of the events that is used (1.0)")
    parser.add_argument(
        "--match",
        default="",
        help="only comparisons with this text in their names; the suite's file is replaced all the same",
    )
    parser.add_argument("--results", type=Path, default=records.RESULTS, help="the folder of the JSON files")
    parser.add_argument(
        "--page", action="store_true", help="write docs/benchmarks.md from the results, measure nothing"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
