"""The command line: `windowing COMMAND`, or `python -m windowing COMMAND`; docs/reference/command_line.md has an example of each.

    new NAME                 writes a project: bolts, a test and a job        templates.py
    check FILE               reports all mistakes, without Spark              loading.py
    explain FILE:BOLT        draws the windows of some rows                   local/time_line.py
    run FILE:TOPOLOGY        in one process, with a table of its components   running.py
    ui FILE:TOPOLOGY         the same, with a page for a browser              running.py
    ui CHECKPOINT            a page of a query that another process runs      stored.py
    doctor                   checks the installation and runs a small query   doctor.py
    status CHECKPOINT        prints the content of a query's checkpoint       stored.py
    rescale OLD NEW          a checkpoint with another number of tasks         spark/rescaling.py
    states STORE             partitions, fences and rows of Trident states    stored.py
    replay CASES             compares recorded cases                          here
    simulate                 runs seeds of the simulator                      testing/simulator

A file of cases has one JSON object per line, in the format of `windowing/testing/replay.py`, with the expected `events`.
Exit code: 0 for success, 1 if the command ran and the result is bad (a case differs, a mistake was found, a run failed), 2 for an
invalid file or option, 130 or 143 if it was stopped by Ctrl-C or SIGTERM (`ui`, which both are to end: 0). A mistake of the user is
printed as a sentence; text from data is escaped.
"""

from __future__ import annotations

import gzip
import inspect
import json
import math
import re
import threading
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from windowing.acking.acker import Reason
from windowing.cli import stored
from windowing.cli.doctor import diagnose
from windowing.cli.loading import (
    CommandFailed,
    CommandGroup,
    CommandRefused,
    called,
    declared_in,
    json_of,
    loaded,
    mistakes_of,
    module_of,
    planned,
    safe,
    stopped,
    stopper,
    topology_of,
    write,
)
from windowing.cli.running import components_table, moment, phases_line, run_on_page, run_on_screen
from windowing.cli.templates import write_project
from windowing.errors import WindowingError, describe_error, quote, represented
from windowing.execution.metrics import RunMetrics, SlowestInput
from windowing.execution.plan import execution_plan
from windowing.local.router import ClusterResult
from windowing.local.time_line import explain
from windowing.local.trident_tasks import TridentResult
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.messages import BadMessage, typed_row
from windowing.schema.types import Schema
from windowing.stores.factory import server_of
from windowing.stores.remote import masked
from windowing.testing.replay import check_case, replay
from windowing.topology.bolts import ComponentKind
from windowing.topology.plan import Topology
from windowing.trident import TridentTopology

_NEEDED = ("length", "slide", "event_time", "stateful", "clock_start_ms", "ops", "events")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The result of one case; `difference` is None if the events agree."""

    name: str
    mix: str
    difference: str | None


@click.group(cls=CommandGroup)
@click.version_option(package_name="windowing")
@click.pass_context
def commands(context: click.Context) -> None:
    """Windowed bolts and topologies: create, check, explain and run them, and inspect what is stored."""
    context.with_resource(warnings.catch_warnings())
    warnings.showwarning = _print_warning


def _print_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning without its place, which is a line of this package or of click."""
    click.echo(f"{category.__name__}: {message}", err=True)


@commands.command("replay", short_help="Replay recorded cases, and report which agree.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--semantics",
    type=click.Choice(["storm", "lossless"]),
    help="Run all cases with these semantics, whatever their files say.",
)
@click.option(
    "--batched", is_flag=True, help="Pass consecutive tuples of a case together, to add_batch, and not one by one."
)
@click.option(
    "--show", default=5, type=click.IntRange(min=0), show_default=True, help="How many differing cases to print."
)
@click.pass_context
def replay_command(
    context: click.Context, files: tuple[Path, ...], semantics: str | None, batched: bool, show: int
) -> None:
    """Replay the recorded cases of FILES (.jsonl or .jsonl.gz) and compare the resulting events with the recorded ones."""
    asked: dict[str, Any] = {} if semantics is None else {"semantics": semantics}
    if batched:
        asked["batched"] = True
    verdicts = [_judge(name, case, asked) for file in files for name, case in _cases(file)]
    console = _console()
    differing = [verdict for verdict in verdicts if verdict.difference is not None]
    for verdict in differing[:show]:
        console.print(f"[bold]{escape(verdict.name)}[/bold] {escape(str(verdict.difference))}")
    if len(differing) > show:
        console.print(f"... and {len(differing) - show} more that differ")
    console.print(_table(verdicts))
    context.exit(1 if differing or not verdicts else 0)


def _cases(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the cases of a file with their names. Raises UsageError for a file that cannot be read."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _case(line, f"{file.name}:{number}")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as problem:
            raise click.UsageError(f"{file} cannot be read: {problem}") from problem


def _case(line: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        case = json.loads(line)
    except ValueError as problem:
        raise click.UsageError(f"{where} is no JSON: {problem}; each line of the file is a case") from problem
    missing = [name for name in _NEEDED if name not in case] if isinstance(case, dict) else ["everything"]
    if missing:
        raise click.UsageError(f"{where} is no recorded case: it lacks {', '.join(missing)}")
    return str(case.get("name", where)), case


def _judge(name: str, case: Mapping[str, Any], asked: Mapping[str, Any]) -> _Verdict:
    operations = {field: value for field, value in case.items() if field != "events"} | dict(asked)
    try:
        check_case(operations)
    except WindowingError as problem:
        raise click.UsageError(f"{name} is no recorded case: {problem.args[0]}") from problem
    try:
        return _Verdict(name, _window_kind(case), _difference(replay(operations), case["events"]))
    except WindowingError as error:
        return _Verdict(name, _window_kind(case), f"cannot be replayed: {error}")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise click.UsageError(f"{name} is no recorded case: {type(problem).__name__}: {problem}") from problem


def _difference(found: list[Any], recorded: list[Any]) -> str | None:
    if found == recorded:
        return None
    for number, (ours, theirs) in enumerate(zip(found, recorded, strict=False)):
        if ours != theirs:
            return f"event {number}: recorded {quote(theirs, 300)}, now {quote(ours, 300)}"
    return f"recorded {len(recorded)} events, now {len(found)}"


def _window_kind(case: Mapping[str, Any]) -> str:
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


# -- the other commands -----------------------------------------------------------------------------------------------------------


_FILE = click.Path(dir_okay=False, path_type=Path)
_STORES = "give the path of a SqliteStore on a file system of this machine, postgresql://... or redis://..."


class _Seconds(click.FloatRange):
    """A finite number of seconds; `nan` and `inf`, which Python reads as floats, are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        return seconds if math.isfinite(seconds) else self.fail(f"{value} is no number of seconds.", param, ctx)


def _settings(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return the settings of Spark given by --conf. A value may be a secret: no message repeats one."""
    settings = {}
    for number, each in enumerate(given, 1):
        name, sign, value = each.partition("=")
        if not sign or not name.startswith("spark."):
            said = f"{quote(name)} is no setting of Spark" if sign else f"number {number} has no value"
            raise click.BadParameter(
                f"{said}; write KEY=VALUE, for example spark.hadoop.fs.s3a.endpoint.region=eu-central-1",
                context,
                option,
            )
        settings[name] = value
    return settings


_conf = click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_settings,
    help="A setting of Spark, as for spark-submit; repeated. For checkpoints on hdfs://, s3a:// and the like.",
)


_json_output = click.option("--json", "as_json", is_flag=True, help="Print one JSON object or list, for a script.")


def _console() -> Console:
    return Console(width=None if Console().is_terminal else 120, highlight=False)


@commands.command("new", short_help="Write a new project: bolts, rows, a test, a job.")
@click.argument("name")
def new_command(name: str) -> None:
    """Write bolts, some rows, a test and a job into a new folder NAME."""
    for path in write_project(Path(name)):
        click.echo(safe(str(path)))
    steps = [f"cd {name}", "python job.py", "python -m pytest", "windowing explain bolts.py:count_words rows.json"]
    click.echo("\nthen:  " + "\n       ".join(map(safe, steps)))


@commands.command("check", short_help="Report all mistakes in the declarations of a file.")
@click.argument("file", type=_FILE)
@click.pass_context
def check_command(context: click.Context, file: Path) -> None:
    """Report all mistakes in FILE: in its bolts and spouts, its topologies, and the topology that its function `topology` returns.

    Imports the file; does not start Spark.
    """
    whole, _, name = str(file).rpartition(":")
    if Path(whole).is_file() and not file.is_file():
        raise CommandRefused(f"check takes a whole file, {name!r} included; write: windowing check {whole}")
    try:
        module = module_of(file)
    except CommandRefused as problem:
        if problem.__cause__ is None:
            raise
        raise CommandFailed(problem.message) from problem  # the file has ended its import: a mistake in it
    wrong = {name: mistakes_of(partial(getattr, module, name)) for name in declared_in(module)}
    maker = getattr(module, "topology", None)
    if inspect.isfunction(maker):
        wrong["topology()"] = mistakes_of(partial(called, maker, f"{file}:topology"))
    if not wrong:
        raise CommandRefused(
            f"{file} declares no bolt, spout or topology of its own, and what it imports is not checked here; "
            "check the file that declares them, or give this one a function topology() that returns the topology"
        )
    for name, mistakes in wrong.items():
        click.echo(safe(f"{name}: {'no mistake found' if not mistakes else f'{len(mistakes)} found'}"))
        for mistake in mistakes:
            click.echo(safe(f"  - {mistake}"))
    context.exit(1 if any(wrong.values()) else 0)


@commands.command("explain", short_help="Draw what a windowed bolt does with rows.")
@click.argument("target", metavar="FILE:BOLT")
@click.argument("rows", required=False, type=_FILE)
@click.option("--svg", type=_FILE, help="Write the picture into this SVG file; print no text.")
@click.option("--png", type=_FILE, help="The same as a PNG file; needs the extra draw.")
@click.option(
    "--drain/--no-drain",
    default=True,
    show_default=True,
    help="At the end of the rows, fire the windows that are still open, or leave them open.",
)
def explain_command(target: str, rows: Path | None, svg: Path | None, png: Path | None, drain: bool) -> None:
    """Draw the windows of a windowed bolt for a JSON file: a list of rows, each a micro-batch, or of lists of rows (micro-batches).

    Without ROWS, print the plan of the bolt, or of a topology: its stages, tasks and streams.
    """
    if rows is None:
        _console().print(Text(safe(execution_plan(planned(target)).explain())))
        return
    line = explain(loaded(target), json_of(rows), drain=drain)
    if svg is not None:
        write(svg, line.svg().encode())
    if png is not None:
        write(png, line.png())
    if svg is None and png is None:
        click.echo(line.text(max(60, _console().width)))


@commands.command("run", short_help="Run a topology in one process, with a table.")
@click.argument("target", metavar="FILE:TOPOLOGY")
@click.option(
    "--rows",
    type=_FILE,
    help='JSON file with the batches of each InputSpout, or of each stream of Trident: {"NAME": [[row, row], [row]]}.',
)
@click.option(
    "--for",
    "for_seconds",
    type=_Seconds(min=0.001),
    metavar="SECONDS",
    help="End the run after this many seconds, even if its input has not ended.",
)
@click.option(
    "--show",
    default=0,
    type=click.IntRange(min=0),
    help="Print up to this many rows of each output at the end.",
    show_default=True,
)
@click.option("--state", type=_FILE, help="SQLite file in which states, and the progress of Trident, outlive the run.")
@click.pass_context
def run_command(
    context: click.Context, target: str, rows: Path | None, for_seconds: float | None, show: int, state: Path | None
) -> None:
    """Run a topology in one process, with a table of its components, until its input ends or for some time."""
    topology = topology_of(target)
    batches = _batches_for(topology, rows)
    console = _console()
    try:
        result = run_on_screen(topology, batches, for_seconds, console, state)
    except KeyboardInterrupt as stop:
        raise stopped(stop, "; nothing was drained") from None
    outputs: Mapping[str, list[Any]] = result.outputs if isinstance(result, ClusterResult) else result.sinks
    for name, output in outputs.items():
        for row in output[:show]:
            click.echo(safe(f"{name}: {', '.join(map(represented, row))}"))
        if len(output) > show:
            more, left = " more" if show else "", len(output) - show
            click.echo(safe(f"{name}: {left}{more} row{'s' if left > 1 else ''}"))
    for line in _problems(result, max(show, 3)):
        click.echo(safe(line))
    context.exit(1 if result.dead_letters or result.errors else 0)


def _problems(result: ClusterResult | TridentResult, at_most: int) -> Iterator[str]:
    """Yield a line for each of the first dead letters and of the first reported errors."""
    letters = result.dead_letters if isinstance(result, ClusterResult) else []  # Trident ends the run instead
    for letter in letters[:at_most]:
        unknown = letter.is_message and letter.error == Reason.FAILED.value
        why = "; raise FailedException in place of collector.fail to see the error" if unknown else ""
        yield f"dead letter of {letter.component}: {letter.error}, attempts {letter.attempts}, tuples {quote(letter.tuples)}{why}"
    for component, task, error in result.errors[:at_most]:
        yield f"error of {component}[{task}]: {describe_error(error)}"
    for what, found in (("dead letter", letters), ("error", result.errors)):
        left = len(found) - at_most
        if left > 0:
            yield f"{left} more {what}{'s' if left > 1 else ''}"


@commands.command("ui", short_help="Run a topology, or watch a query, on a page.")
@click.argument("target", metavar="FILE:TOPOLOGY|CHECKPOINT")
@click.option("--rows", type=_FILE, help="As for `windowing run`.")
@click.option("--for", "for_seconds", type=_Seconds(min=0.001), metavar="SECONDS", help="End after this many seconds.")
@click.option(
    "--port", default=0, type=click.IntRange(0, 65535), help="Port on 127.0.0.1. 0, the default, takes a free one."
)
@click.option("--keep", is_flag=True, help="When the run is over, serve the page until Ctrl-C.")
@click.option("--state", type=_FILE, help="As for `windowing run`.")
@_conf
def ui_command(
    target: str,
    rows: Path | None,
    for_seconds: float | None,
    port: int,
    keep: bool,
    state: Path | None,
    settings: dict[str, str],
) -> None:
    """Run a topology in one process and serve a read-only page of it for a browser on this machine.

    For a CHECKPOINT, a folder, serve a page of the query on Spark that another process runs there; it is some seconds behind. A
    checkpoint on hdfs://, s3a:// and the like is read through Spark, which this command starts on this machine.
    """
    if stored.is_elsewhere(target) or stored.local_path(target, "").is_dir():
        for option in [name for name, given in (("--rows", rows), ("--state", state)) if given is not None]:
            raise CommandRefused(
                f"{target} is the checkpoint of a query, which has its own sources and states; leave out {option}"
            )
        _show_query(stored.checkpoint_files(target, settings), for_seconds, port)
        return
    if settings:
        raise CommandRefused(f"{target} runs in one process, without Spark; leave out --conf")
    if ":" not in target and not Path(target).is_file():
        raise CommandRefused(f"there is no folder {quote(target)}; give the checkpoint= of a query, or FILE:TOPOLOGY")
    topology = topology_of(target)
    batches = _batches_for(topology, rows)
    try:
        _, page = run_on_page(topology, batches, for_seconds, port, lambda url: click.echo(f"open {url}"), state)
        with page:
            if keep:
                click.echo("the run is over; Ctrl-C ends the page")
                threading.Event().wait()
    except KeyboardInterrupt as stop:
        click.echo(f"ended by {stopper(stop)}")


def _show_query(checkpoint: stored.CheckpointFiles, for_seconds: float | None, port: int) -> None:
    try:
        with stored.page_of(checkpoint, port) as page:
            click.echo(f"open {page.url}; Ctrl-C ends the page, not the query")
            threading.Event().wait(None if for_seconds is None else min(for_seconds, threading.TIMEOUT_MAX))
    except KeyboardInterrupt as stop:
        click.echo(f"ended by {stopper(stop)}")


def _batches_for(topology: Topology | TridentTopology, file: Path | None) -> dict[str, list[list[Any]]] | None:
    """Return the batches of --rows. Raises CommandRefused if the topology has no other source than rows, and none are given."""
    spouts = topology.spouts if isinstance(topology, Topology) else ()
    inputs = [spout.id for spout in spouts if spout.kind is ComponentKind.INPUT]
    if file is not None:
        return _batches_of(file, inputs, _fields_of(topology))
    if inputs and len(inputs) == len(spouts):
        raise CommandRefused(
            f"topology {topology.name!r} gets all its rows from outside; give them with --rows FILE, a JSON file of the form "
            f"{_form(inputs)}"
        )
    return None


def _form(spouts: Sequence[str]) -> str:
    """Return the form of a file of batches, in which a row is a list of values or an object by field names."""
    return "{" + ", ".join(f'"{name}": [[row, row], [row]]' for name in spouts or ["spout"]) + "}"


def _fields_of(topology: Topology | TridentTopology) -> dict[str, Schema]:
    """Return the fields of the rows that a spout or stream may be given, by its name."""
    if isinstance(topology, TridentTopology):
        return {name: source.schema for name, source in topology.build().streams.items()}
    outputs = {spout.id: spout.outputs.get(DEFAULT_STREAM) for spout in topology.spouts}
    return {name: output.schema for name, output in outputs.items() if output is not None}


def _batches_of(file: Path, inputs: Sequence[str], fields: Mapping[str, Schema]) -> dict[str, list[list[Any]]]:
    """Return the batches of each spout, with the values of rows in the types of the fields of its name."""
    found: Any = json_of(file)
    batched = isinstance(found, dict) and all(
        isinstance(batches, list) and all(isinstance(batch, list) for batch in batches) for batches in found.values()
    )
    if not batched:
        raise CommandRefused(f"{file} holds no batches; write {_form(inputs)}, a list of batches for each spout")
    read: dict[str, list[list[Any]]] = {}
    for spout, batches in found.items():
        try:
            schema = fields.get(spout, Schema((), ()))
            read[spout] = [[typed_row(row, schema) for row in batch] for batch in batches]
        except BadMessage as problem:
            raise CommandRefused(
                f"{file}: a row of {spout!r} cannot be read: {problem}; write a date or a time as in ISO 8601, bytes as Base64"
            ) from None
    return read


@commands.command("status", short_help="Print what the checkpoint of a query holds.")
@click.argument("checkpoint")
@click.option("--tasks", "by_task", is_flag=True, help="Also print the numbers of each task.")
@_json_output
@_conf
@click.pass_context
def status_command(
    context: click.Context, checkpoint: str, by_task: bool, as_json: bool, settings: dict[str, str]
) -> None:
    """Print the definition, the batches and the numbers that a query on Spark has left in its CHECKPOINT folder.

    Only reads files, so it may run beside the query. A checkpoint on hdfs://, s3a:// and the like is read through Spark, which this
    command starts on this machine.
    """
    table, files = Table(show_header=False, box=None), stored.checkpoint_files(checkpoint, settings)
    lines, found = stored.read_checkpoint(files), None
    try:
        found = stored.metrics_in(files)
    except CommandFailed as problem:
        lines.append((stored.DAMAGED, problem.message))
    damaged = [text for title, text in lines if title == stored.DAMAGED]
    if as_json:
        said: dict[str, Any] = {title: [text for other, text in lines if other == title] for title, _ in lines}
        click.echo(json.dumps(said | {"metrics": None if found is None else found.plain()}))
    else:
        for title, text in lines:
            if title != stored.DAMAGED:
                table.add_row(Text(title), Text(safe(text)))
        _console().print(table)
        for text in damaged:
            click.echo(safe(f"{stored.DAMAGED}: {text}"))
        if found is not None:
            _show_stored(found, by_task)
        elif not damaged:
            click.echo("no numbers were left here yet: a query writes them some seconds after its first batch")
    context.exit(1 if damaged else 0)


def _show_stored(found: RunMetrics, by_task: bool) -> None:
    reached = "before its first batch" if found.batch is None else f"up to batch {found.batch}"
    title = f"the last run of {found.name}, {reached}, {moment(found.at_ms)} UTC"
    _console().print(components_table(found, title, phases_line(found), by_task))
    for name, each in found.components().items():
        said = []
        # Otherwise there is only one input, or none that had tuples.
        if each.slowest is not None and str(each.slowest) != f"stream {DEFAULT_STREAM}":
            said.append(f"the watermark waits for {each.slowest}{_newest_of(each.slowest)}")
        said += [f"{count} late, with the reason {reason}" for reason, count in each.late.items()]
        said += [f"{each.dead_letters} dead letter{'s' if each.dead_letters > 1 else ''}"] if each.dead_letters else []
        for text in (*said, *each.errors):
            click.echo(safe(f"{name}: {text}"))
    if found.ended is not None:
        click.echo(safe(f"the last run {f'ended {found.ended}' if found.ended else 'has not ended, or was killed'}"))


def _newest_of(slowest: SlowestInput) -> str:
    return "" if slowest.newest_ms is None else f", whose newest tuple is of {moment(slowest.newest_ms)} UTC"


@commands.command("rescale", short_help="Make a checkpoint with another number of tasks.")
@click.argument("old")
@click.argument("new")
@click.option(
    "--tasks",
    "given",
    multiple=True,
    metavar="N|BOLT=N",
    help="Number of tasks in NEW: N for a single bolt; for a topology BOLT=N, once for each bolt to change.",
)
@click.option(
    "--before", metavar="FILE:NAME", help="For Trident, in place of --tasks: the topology that was started on OLD."
)
@click.option(
    "--after",
    metavar="FILE:NAME",
    help="For Trident: the topology to start on NEW, with another name or store for each state that is written.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Shuffle partitions of the topology on NEW. Default: the number that submit would choose on this machine.",
)
@_conf
def rescale_command(
    old: str,
    new: str,
    given: tuple[str, ...],
    before: str | None,
    after: str | None,
    partitions: int | None,
    settings: dict[str, str],
) -> None:
    """Create a checkpoint NEW with another number of tasks from the checkpoint OLD of a stopped query.

    Afterwards OLD is closed: no query can be started on it. Nothing of it is deleted.
    """
    if bool(given) == bool(before and after) or bool(before) != bool(after):
        raise click.UsageError("give --tasks, or for a Trident topology --before and --after")
    tasks = _tasks(given) if given else None
    made: dict[str, Any] = {
        option: topology_of(target) for option, target in (("before", before), ("after", after)) if target
    }
    spark = stored.spark_session("windowing rescale", settings)
    from windowing.spark import rescale

    try:
        rescale(old, new, tasks=tasks, **made, partitions=partitions, spark=spark)
    except WindowingError as problem:
        raise CommandFailed(_as_options(str(problem))) from problem
    if tasks is None:
        has = f"what {before} had, with the tasks of {after}"
    else:
        numbers = [(f" of {bolt}", n) for bolt, n in tasks.items()] if isinstance(tasks, dict) else [("", tasks)]
        has = ", ".join(f"{n} tasks{of}" for of, n in numbers)
    click.echo(safe(f"{new} has {has}; start the query with it, and with output folders of its own. {old} is closed."))


def _as_options(text: str) -> str:
    """Return an error of `rescale` with the options of the command in place of the arguments in Python.

    >>> _as_options("give before=, as it was started; or say whose, tasks={'sum': 3}; 'tasks=' stays")
    "give --before, as it was started; or say whose, --tasks sum=3; 'tasks=' stays"
    """
    text = re.sub(r"\btasks=\{'([^']*)': (\d+)\}", r"--tasks \1=\2", text)
    return re.sub(r"(?<![\w'])(tasks|before|after|partitions)=(?=[,;:\s]|$)", r"--\1", text)


def _tasks(given: tuple[str, ...]) -> int | dict[str, int]:
    parted = [each.rpartition("=") for each in given]
    if not all(number.isdecimal() and len(number) < 10 and int(number) for _, _, number in parted):
        raise click.BadParameter(
            f"{' '.join(given)} is neither a number of at least 1 nor BOLT=NUMBER", param_hint="--tasks"
        )
    tasks = {bolt: int(number) for bolt, _, number in parted}
    if len(given) == 1 and "=" not in given[0]:
        return tasks[""]
    if "" in tasks or len(tasks) < len(given):
        raise click.BadParameter(
            "several numbers are for different bolts; write BOLT=NUMBER once for each", param_hint="--tasks"
        )
    return tasks


_STATE_COLUMNS = ("state", "partition", "rows", "written last by", "kind")


@commands.command("states", short_help="Print the Trident states of a store.")
@click.argument("store")
@_json_output
def states_command(store: str, as_json: bool) -> None:
    """Print, for each Trident state in STORE, its partitions, their rows, and the batch and attempt that wrote last.

    STORE is a SQLite file, postgresql://... or redis://... Only reads.
    """
    server = server_of(store)
    if server is not None:
        rows = stored.read_server_states(store, server[0])
        store = masked(store)
    else:
        rows = stored.read_states(stored.local_path(store.removeprefix("sqlite:"), _STORES))
    if as_json:
        each = (dict(zip(_STATE_COLUMNS, row, strict=True)) for row in rows)
        click.echo(json.dumps([{**row, "rows": int(row["rows"])} for row in each]))
        return
    if not rows:
        click.echo(f"{safe(store)} has no Trident states")
        return
    title = Text(safe(f"Trident states of {store}"))
    table = Table(*_STATE_COLUMNS, title=title)
    for row in rows:
        table.add_row(*(Text(safe(str(cell))) for cell in row))
    _console().print(table)


@commands.command("doctor", short_help="Check what Spark needs.")
@click.option(
    "--query/--no-query", default=True, show_default=True, help="Also run ten rows on Spark, or leave that out."
)
@click.pass_context
def doctor_command(context: click.Context, query: bool) -> None:
    """Check that everything Spark needs is installed, and print how to fix what is missing."""
    bad = False
    for finding in diagnose(query):
        sign = {True: "ok ", False: "NO ", None: " - "}[finding.good]
        way_out = f"; {finding.to_do}" if finding.to_do and finding.good is not True else ""
        click.echo(safe(f"{sign} {finding.what:<18} {finding.found}{way_out}"))
        bad |= finding.good is False
    context.exit(1 if bad else 0)


@commands.command(
    "simulate", short_help="Run Trident topologies under seeded faults.", context_settings={"show_default": True}
)
@click.option("--seeds", default=200, type=click.IntRange(min=1), help="Number of seeds to run.")
@click.option("--start", default=0, help="First seed; the others are the next whole numbers.")
@click.option("--processes", default=1, type=click.IntRange(min=1), help="Number of processes that share the seeds.")
@click.pass_context
def simulate_command(context: click.Context, seeds: int, start: int, processes: int) -> None:
    """Run random Trident topologies under seeded faults (crashes, lost messages, errors of stores).

    A seed that fails is printed with the smallest schedule of faults that still fails.
    """
    from windowing.testing import simulator

    try:
        code = simulator.main(seeds, start, processes)
    except BrokenExecutor as problem:
        raise CommandFailed(
            "a process of the simulator was killed; look at the memory, or give fewer --processes"
        ) from problem
    context.exit(code)
