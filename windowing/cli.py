"""The command line: `python -m windowing replay CASES.jsonl.gz` runs recorded cases and says which agree.

A file of cases has one JSON object a line, in the format of `windowing/testing/replay.py`, with the `events` to be compared.
Exit code: 0 where all cases agree, 1 where one differs, 2 where a file or an option is wrong.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from windowing.errors import WindowingError, quote
from windowing.testing.replay import replay

__all__ = [
    "commands",
]


_NEEDED = ("length", "slide", "event_time", "stateful", "clock_start_ms", "ops", "events")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What came of one case; `difference` is None where it agrees."""

    name: str
    mix: str
    difference: str | None


@click.group()
def commands() -> None:
    """Windowed bolts: tools for recorded cases."""


@commands.command("replay")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--semantics", type=click.Choice(["storm", "lossless"]), help="In place of what each case says.")
@click.option("--batched", is_flag=True, help="Feed runs of tuples through add_batch.")
@click.option("--show", default=5, show_default=True, help="How many differences to print.")
@click.pass_context
def replay_command(
    context: click.Context, files: tuple[Path, ...], semantics: str | None, batched: bool, show: int
) -> None:
    """Replay the recorded cases of FILES (.jsonl or .jsonl.gz) and compare the events they cause with the recorded ones."""
    asked: dict[str, Any] = {} if semantics is None else {"semantics": semantics}
    if batched:
        asked["batched"] = True
    verdicts = [_judge(name, case, asked) for file in files for name, case in _cases(file)]
    console = Console(width=None if Console().is_terminal else 120, highlight=False)
    differing = [verdict for verdict in verdicts if verdict.difference is not None]
    for verdict in differing[:show]:
        console.print(f"[bold]{escape(verdict.name)}[/bold] {escape(str(verdict.difference))}")
    if len(differing) > show:
        console.print(f"... and {len(differing) - show} more that differ")
    console.print(_table(verdicts))
    context.exit(1 if differing or not verdicts else 0)


def _cases(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the cases of a file with their names, or stop with a sentence."""
    with _opened(file) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _case(line, f"{file.name}:{number}")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as problem:
            raise click.UsageError(f"{file} cannot be read: {problem}") from problem


def _opened(file: Path) -> IO[str]:
    return gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")


def _case(line: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        case = json.loads(line)
    except ValueError as problem:
        raise click.UsageError(f"{where} is no JSON: {problem}") from problem
    missing = [name for name in _NEEDED if name not in case] if isinstance(case, dict) else ["everything"]
    if missing:
        raise click.UsageError(f"{where} is no recorded case: it lacks {', '.join(missing)}")
    return str(case.get("name", where)), case


def _judge(name: str, case: Mapping[str, Any], asked: Mapping[str, Any]) -> _Verdict:
    operations = {field: value for field, value in case.items() if field != "events"}
    try:
        return _Verdict(name, _mix(case), _difference(replay({**operations, **asked}), case["events"]))
    except WindowingError as error:
        return _Verdict(name, _mix(case), f"cannot be replayed: {error}")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise click.UsageError(f"{name} is no recorded case: {type(problem).__name__}: {problem}") from problem


def _difference(found: list[Any], recorded: list[Any]) -> str | None:
    if found == recorded:
        return None
    for number, (ours, theirs) in enumerate(zip(found, recorded, strict=False)):
        if ours != theirs:
            return f"event {number}: recorded {quote(theirs, 300)}, now {quote(ours, 300)}"
    return f"recorded {len(recorded)} events, now {len(found)}"


def _mix(case: Mapping[str, Any]) -> str:
    length, slide = ("Count" if "count" in case[part] else "Duration" for part in ("length", "slide"))
    return f"{length} / {slide}, {'event' if case['event_time'] else 'processing'} time"


def _table(verdicts: list[_Verdict]) -> Table:
    table = Table("length / slide", "cases", "agree", "differ", title="replayed")
    for mix in sorted({verdict.mix for verdict in verdicts}):
        table.add_row(mix, *_numbers([verdict for verdict in verdicts if verdict.mix == mix]))
    table.add_section()
    table.add_row("all", *_numbers(verdicts))
    return table


def _numbers(verdicts: list[_Verdict]) -> tuple[str, str, str]:
    differ = sum(verdict.difference is not None for verdict in verdicts)
    return str(len(verdicts)), str(len(verdicts) - differ), str(differ)
