"""The picture of the demo: flights and mean delay per window, with the late flights marked."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from flights_data import DAY_MS, Folder
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

COLOURS = {"EWR": "#0072B2", "JFK": "#D55E00", "LGA": "#009E73"}
NAMES = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "La Guardia"}
INK, PALE = "#222222", "#8a8a8a"
QUARTERS = 96
FEW = 5


def draw(folder: Folder) -> None:
    """Write the picture from the job's output."""
    windows = _read(folder.output / "departures" / "windows")
    late = _read(folder.output / "departures" / "late")
    windows["time"] = pd.to_datetime(windows["until"], unit="ms")
    late["time"] = pd.to_datetime(late["departure"], unit="ms") if len(late) else pd.Series(dtype="datetime64[ms]")
    first, last = _week(windows)

    plt.rcParams.update({"font.size": 10, "axes.edgecolor": PALE, "text.color": INK, "axes.labelcolor": INK})
    plt.rcParams.update({"xtick.color": INK, "ytick.color": INK, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(
        3, 1, figsize=(13, 12), height_ratios=(1, 1, 1.35), layout=ConstrainedLayoutEngine(h_pad=0.12)
    )
    flights, delays, year = axes
    week = windows[(windows["time"] > first) & (windows["time"] <= last)]
    late_then = late[(late["time"] > first) & (late["time"] <= last)] if len(late) else late
    _lines(flights, week, "flights", late_then)
    _lines(delays, week, "mean_delay", None)
    _titles(flights, delays, first, last)
    _calendar(figure, year, windows, late)
    figure.savefig(folder.picture, dpi=130)
    plt.close(figure)


def _read(path: Path) -> pd.DataFrame:
    parts = sorted(path.glob("batch_id=*/*.parquet"))
    frames = [pd.read_parquet(part, partitioning=None) for part in parts]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _week(windows: pd.DataFrame) -> tuple[pd.Timestamp, pd.Timestamp]:
    """Return the seven days with the most minutes of delay: there is something to see in them."""
    minutes = (windows["flights"] * windows["mean_delay"]).groupby(windows["time"].dt.floor("D")).sum()
    every_day = minutes.asfreq("D", fill_value=0.0)
    if len(every_day) <= 7:
        return every_day.index[0], every_day.index[-1] + pd.Timedelta(days=1)
    last = pd.Timestamp(every_day.rolling(7).sum().idxmax())
    return last - pd.Timedelta(days=6), last + pd.Timedelta(days=1)


def _lines(axes: Axes, week: pd.DataFrame, column: str, late: pd.DataFrame | None) -> None:
    """Draw one line per airport; it breaks where no window fired, as at night."""
    for origin, colour in COLOURS.items():
        own = week[week["origin"] == origin].set_index("time").sort_index()
        if len(own):
            own = own[["flights", column] if column != "flights" else [column]].asfreq("15min")
            axes.plot(
                own[column].where(own["flights"] >= FEW),
                color=colour,
                linewidth=1.7,
                label=f"{NAMES[origin]} ({origin})",
            )
            axes.plot(own[column], color=colour, linewidth=0.7, alpha=0.45)
    if late is not None and len(late):
        at = np.zeros(len(late))
        axes.scatter(
            late["time"],
            at,
            marker="^",
            s=60,
            color=[COLOURS[origin] for origin in late["origin"]],
            edgecolor="white",
            linewidth=0.6,
            zorder=5,
            clip_on=False,
            label="_late",
        )
        axes.scatter([], [], marker="^", s=60, color=PALE, label="a flight that reported late")
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(mdates.DayLocator())
    axes.xaxis.set_major_formatter(mdates.DateFormatter("%a %d %b"))
    axes.xaxis.set_minor_locator(mdates.HourLocator(byhour=(6, 12, 18)))


def _titles(flights: Axes, delays: Axes, first: pd.Timestamp, last: pd.Timestamp) -> None:
    for axes in (flights, delays):
        axes.set_xlim(mdates.date2num(first), mdates.date2num(last))
    until = last - pd.Timedelta(days=1)
    span = f"{first.day} {first:%B} to {until.day} {until:%B %Y}"
    which = ", the week with most delay" if (last - first).days == 7 else ""
    flights.set_title(f"Departures in the last hour, every 15 minutes: {span}{which}", loc="left")
    flights.set_ylim(0, flights.get_ylim()[1] * 1.12)  # room for the legend
    flights.set_ylabel("flights per hour")
    flights.legend(loc="upper right", ncols=4, frameon=True, framealpha=0.9, edgecolor="none", fontsize=9)
    delays.set_title(f"Mean delay of these departures (thin: fewer than {FEW} flights in the hour)", loc="left")
    delays.set_ylabel("minutes")
    delays.axhline(0, color=PALE, linewidth=0.8)


def _calendar(figure: Figure, axes: Axes, windows: pd.DataFrame, late: pd.DataFrame) -> None:
    """Draw every window: a column per day, a row per quarter of an hour, coloured by the mean delay of all airports."""
    day, quarter = windows["until"] // DAY_MS, windows["until"] % DAY_MS // (DAY_MS // QUARTERS)
    first, last = int(day.min()), int(day.max())
    minutes = (windows["flights"] * windows["mean_delay"]).groupby([quarter, day]).sum()
    total = windows["flights"].groupby([quarter, day]).sum()
    grid = (minutes / total).unstack().reindex(index=range(QUARTERS), columns=range(first, last + 1))
    left, right = mdates.date2num(np.array([first, last + 1], "datetime64[D]"))
    image = axes.imshow(
        grid,
        aspect="auto",
        origin="lower",
        cmap="YlOrRd",
        vmin=0,
        vmax=90,
        extent=(left, right, 0, 24),
        interpolation="nearest",
    )
    axes.set_facecolor("#f4f4f4")
    if len(late):
        hours = late["departure"] % DAY_MS / (DAY_MS / 24)
        days = mdates.date2num(late["time"].dt.floor("D")) + 0.5
        axes.scatter(
            days, hours, s=9, color="#1a3a8f", linewidth=0, label=f"{len(late):,} flights that reported late", zorder=3
        )
        axes.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none", fontsize=9, markerscale=2)
    axes.xaxis_date()
    axes.xaxis.set_major_locator(
        mdates.MonthLocator() if last - first > 45 else mdates.DayLocator(interval=1 + (last - first) // 16)
    )
    axes.xaxis.set_major_formatter(mdates.DateFormatter("%b" if last - first > 45 else "%d %b"))
    axes.set_yticks(range(0, 25, 3), [f"{hour}:00" for hour in range(0, 25, 3)])
    axes.set_ylabel("time of departure")
    axes.set_title("All windows: mean delay of the three airports by day and time of day", loc="left")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, extend="both", pad=0.01, aspect=30)
    bar.set_label("mean delay, minutes")
    bar.outline.set_visible(False)
