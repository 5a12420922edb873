"""The suite `storm`: count windows by Storm's Java WindowManager, from Maven Central, against this library in batches.

One JVM answers requests over a pipe, so both run alternately; two warm-up rounds are for its compiler. Storm's time is the CPU time
of the thread that adds, without the JVM's compiler and collector, which is in its favour; ours is that of the whole process.
The windows are compared: size, first and last element in each round, every element in the exact check.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.core.shapes import Shape, glance, in_batches
from benchmarks.events import Events
from benchmarks.frame import Contender, Measured, Plan, timed
from benchmarks.records import Missing
from windowing import Count, count

HERE = Path(__file__).parent
BUILD = HERE / "build"
MOST = 400_000
SHAPES = (
    Shape("1,000", "count 1,000 tumbling, the list", count(1000), count(1000), 400_000, 20_000),
    Shape("1,000/100", "count 1,000/100, the list", count(1000), count(100), 400_000, 20_000),
    Shape("10,000/100", "count 10,000/100, the list", count(10_000), count(100), 200_000, 20_000),
    Shape("1,000/1", "count 1,000/1, the list", count(1000), count(1), 20_000, 3_000),
)


class NotBuilt(Exception):
    """Storm's classes are not available here; the message has the reason."""


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield a comparison for each shape; without Maven or a JDK, Storm is listed as missing."""
    try:
        driver: Driver | None = Driver(build(), SHAPES[0].load(MOST))
        missing = []
    except NotBuilt as why:
        driver, missing = None, [Missing("Storm", str(why))]
    for shape in SHAPES:
        contenders = [Contender("windowing", partial(ours, shape), check=partial(ours_exactly, shape))]
        if driver is not None:
            contenders.append(Contender("Storm", driver.contender(shape, False), check=driver.contender(shape, True)))
        size = max(1_000, int(shape.size * scale) // 1000 * 1000)
        yield Plan(
            shape.name, shape.about, contenders, partial(_part, shape), size, min(size, shape.checked), missing=missing,
            clock="CPU time; of Storm's thread only", warmups=2,
        )  # fmt: skip
    if driver is not None:
        driver.close()


def _part(shape: Shape, number: int) -> Events:
    """Return the first of the events that the driver has."""
    whole = shape.load(MOST)
    return Events(whole.keys[:number], whole.stamps[:number], whole.values[:number], whole.batch)


def ours(shape: Shape, load: Events) -> Measured:
    """Run this library, and return its digest of sizes and ends."""
    found = timed(in_batches(shape, glance), load, len(load))
    windows = [window for _, window in found.result]
    return Measured((len(windows), digest(value for window in windows for value in window)), found.value)


def ours_exactly(shape: Shape, load: Events) -> tuple[int, int]:
    """Run this library, and return the digest of every element."""
    found = in_batches(shape, lambda window: (len(window), *window))(load)
    return len(found), digest(value for _, window in found for value in window)


def digest(values: Any) -> int:
    """Return the digest that the driver computes, in signed 64-bit arithmetic like Java's.

    >>> digest([1, 2.0, 3]), digest([2**62, 2**62])
    (1026, 0)
    """
    found = 0
    for value in values:
        found = (found * 31 + int(value)) & (2**64 - 1)
    return found - 2**64 if found >= 2**63 else found


def build() -> list[str]:
    """Return the command of the driver; build it if necessary. Raises NotBuilt if a tool is missing."""
    for tool, what in (("mvn", "Maven"), ("javac", "JDK")):
        if shutil.which(tool) is None:
            raise NotBuilt(f"there is no {what} on this machine")
    jar, libraries = BUILD / "driver.jar", BUILD / "libraries"
    sources = max(path.stat().st_mtime for path in [HERE / "pom.xml", *HERE.rglob("*.java")])
    if not jar.exists() or jar.stat().st_mtime < sources:
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "package", "dependency:copy-dependencies"]
        done = subprocess.run([*command, f"-DoutputDirectory={libraries}"], check=False, capture_output=True, text=True)
        if done.returncode:
            raise NotBuilt(f"Maven could not build the driver: {done.stdout.strip().splitlines()[:1]}")
    return ["java", "-Xmx1g", "-cp", f"{jar}:{libraries}/*", "bench.Driver"]


@dataclass
class Driver:
    """The JVM that runs Storm's classes on request."""

    command: list[str]
    load: Events

    def __post_init__(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as values:
            values.write("\n".join(map(str, self.load.values)))
        self._values = Path(values.name)
        self._jvm = subprocess.Popen(
            [*self.command, str(self._values)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def contender(self, shape: Shape, exact: bool) -> Callable[[Events], Measured]:
        """Return the run of a shape."""
        return partial(self._run, shape, exact)

    def _run(self, shape: Shape, exact: bool, load: Events) -> Measured:
        assert isinstance(shape.length, Count)
        assert isinstance(shape.slide, Count)
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        request = f"{shape.length.value} {shape.slide.value} {len(load)} {str(exact).lower()}"
        print(request, file=self._jvm.stdin, flush=True)
        answer = self._jvm.stdout.readline().split()
        assert len(answer) == 3, f"the driver ended: {self._jvm.wait()}"
        nanoseconds, windows, found = map(int, answer)
        return Measured((windows, found), nanoseconds / len(load))

    def close(self) -> None:
        """End the JVM."""
        assert self._jvm.stdin is not None
        self._jvm.stdin.close()
        self._jvm.wait(30)
        self._values.unlink(missing_ok=True)
