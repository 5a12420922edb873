"""Common parts of the commands: loading of a user's file, and error messages.

Laws
- A user's mistake gives a sentence and an exit code, never a traceback: 1 if the command ran and the result is bad, 2 if it cannot
  run. An error raised by the user's own file is shown with its file and line.
- Ctrl-C and SIGTERM end a command in the same way: `with` blocks are left, then it prints a sentence. So does a full disk, also one
  that the output is written to.
- Text from data and messages is escaped before it is printed.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, NoReturn

import click

from windowing.errors import WindowingError, describe_error, printable, quote
from windowing.execution.plan import execution_plan
from windowing.schema.checks import did_you_mean, unbound
from windowing.topology.builder import TopologyBuilder
from windowing.topology.decorators import bolt_of, declaration_of
from windowing.topology.plan import Topology
from windowing.trident import TridentTopology


class CommandRefused(click.ClickException):
    """The command cannot run as given. Exit code 2."""

    exit_code = 2

    def __init__(self, sentence: str) -> None:
        super().__init__(safe(sentence))


class CommandFailed(CommandRefused):
    """The command ran, and the result is bad. Exit code 1."""

    exit_code = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def stopped(stop: KeyboardInterrupt, more: str = "") -> CommandRefused:
    """Return the error of a command that was stopped, with the exit code of a shell. more: the end of its sentence."""
    error = CommandRefused(f"stopped by {stopper(stop)}{more}")
    error.exit_code = 143 if isinstance(stop, Terminated) else 130  # type: ignore[misc]  # click reads it of the error
    return error


def stopper(stop: KeyboardInterrupt) -> str:
    """Return what has stopped a command, for a message."""
    return "SIGTERM" if isinstance(stop, Terminated) else "hand"


class CommandGroup(click.Group):
    """Prints errors of the library and of the system as sentences."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        with _sigterm_raised():
            try:
                return super().main(*arguments, **options)
            except OSError as problem:  # click itself ends a command whose output is a closed pipe
                _end_by(problem)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt as stop:  # click says "Aborted!", with exit code 1
            raise stopped(stop) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WindowingError as problem:
            raise CommandFailed(str(problem)) from problem
        except KeyboardInterrupt as stop:
            raise stopped(stop) from None
        finally:
            sys.stdout.flush()  # here an error of the last output is one of the command; at the end Python prints a traceback


@contextmanager
def _sigterm_raised() -> Iterator[None]:
    """Let the first SIGTERM raise Terminated in the `with` block; a second one, or one in a forked process, ends the process."""
    command = os.getpid()

    def raising(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == command:
            raise Terminated
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, raising)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_by(problem: OSError) -> NoReturn:
    """End the command with a sentence about an error of the system, also if its output cannot be written any more."""
    is_full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    where = "" if problem.filename else " (a file, or the output of the command)"
    way_out = f"make room{where}" if is_full else f"look at the path and its rights{where}"
    error = (CommandFailed if is_full else CommandRefused)(f"{describe_error(problem)}; {way_out}")
    with suppress(OSError):
        error.show()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # Python would try again at its end, print a traceback and change the exit code
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(error.exit_code)


def write(file: Path, content: bytes) -> None:
    """Write a file. The OSError of a write, unlike that of an open, does not name it: so this one does."""
    try:
        file.write_bytes(content)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(file)) from problem


def safe(text: str) -> str:
    """Return text for a terminal: its lines, with unprintable characters escaped."""
    return "\n".join(printable(line, 100_000) for line in text.split("\n"))


def module_of(file: Path) -> ModuleType:
    """Run a user's file as a module. Raises CommandRefused with the file and line of an error that it raises."""
    if not file.is_file():
        raise CommandRefused(f"there is no file {quote(str(file))}; give the path of a Python file")
    path = file.resolve()
    name = f"windowing_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CommandRefused(f"{file} is no Python file; give a file whose name ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        del sys.modules[name]
        raise CommandRefused(f"{_location(problem, path)}: {_description(problem)}") from problem
    return module


def _location(problem: BaseException, file: Path) -> str:
    """Return file and line of an error: those of the innermost frame in the user's folder."""
    if isinstance(problem, SyntaxError) and problem.filename:
        return f"{problem.filename}:{problem.lineno}"
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(file.parent)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)


def _description(problem: BaseException) -> str:
    if isinstance(problem, WindowingError):
        return str(problem)
    if isinstance(problem, SyntaxError):
        return f"{type(problem).__name__}: {problem.msg}"
    return f"{type(problem).__name__}: {problem}"


def loaded(target: str) -> Any:
    """Return the object that FILE:NAME names. Raises CommandRefused."""
    path, colon, name = target.rpartition(":")
    if not colon or not path or not name:
        raise CommandRefused(
            f"{quote(target)} has no name behind a colon; write FILE:NAME, for example bolts.py:count_words"
        )
    module = module_of(Path(path))
    if not hasattr(module, name):
        names = [known for known, value in vars(module).items() if not known.startswith("_") and _is_own(module, value)]
        raise CommandRefused(f"{path} has no {quote(name)}; {did_you_mean(name, names)}")
    return getattr(module, name)


def _is_own(module: Any, value: Any) -> bool:
    """Return whether a value of a file is its own: no module, class, function or union of types that it imports."""
    if isinstance(value, ModuleType | UnionType):
        return False
    return not (inspect.isclass(value) or inspect.isroutine(value)) or value.__module__ == module.__name__


def topology_of(target: str) -> Topology | TridentTopology:
    """Return the topology that FILE:NAME names: itself, its builder, or a function that returns one. Raises CommandRefused."""
    found = loaded(target)
    if _accepted(bolt_of, found):
        raise CommandRefused(
            f"{target} is a bolt alone, wanted a topology; write `windowing explain {target} ROWS` to run its windows"
        )
    if callable(found) and not isinstance(found, type | Topology | TopologyBuilder | TridentTopology):
        found = called(found, target)
    if isinstance(found, TopologyBuilder):
        found = found.build()
    if not isinstance(found, Topology | TridentTopology):
        raise CommandRefused(
            f"{target} is {quote(found)}, wanted a topology, its builder, or a function that returns one"
        )
    return found


def planned(target: str) -> Any:
    """Return what FILE:NAME names and has a plan: a bolt, a topology, or the topology that a function without arguments returns."""
    found = loaded(target)
    if inspect.isfunction(found) and not _accepted(bolt_of, found) and not _needed_by(found):
        found = called(found, target)
    return found.build() if isinstance(found, TopologyBuilder) else found


def called(function: Any, target: str) -> Any:
    """Call a user's function without arguments. Raises CommandRefused if it needs some, or with the file and line of its error."""
    names = _needed_by(function)
    if names:
        raise CommandRefused(
            f"{target}: the command calls the function without arguments, but it needs {', '.join(names)}; give "
            f"{'it' if len(names) == 1 else 'each'} a default value, or write a function without arguments that calls it"
        )
    try:
        return function()
    except WindowingError:
        raise
    except Exception as problem:
        file = Path(getattr(getattr(function, "__code__", None), "co_filename", target)).resolve()
        raise CommandRefused(f"{_location(problem, file)}: {_description(problem)}") from problem


def _needed_by(function: Any) -> list[str]:
    """Return the names of the arguments that a call needs; none for a callable that does not tell."""
    found = unbound(function)
    known = [] if found is None else found[0].parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in known if each.default is each.empty and each.kind not in several]


def declared_in(module: ModuleType) -> list[str]:
    """Return the names of the declarations of a module: bolts, spouts, topologies and their builders."""
    return [name for name, value in vars(module).items() if not name.startswith("_") and _is_declared(value, module)]


def _is_declared(value: Any, module: ModuleType) -> bool:
    if isinstance(value, Topology | TopologyBuilder | TridentTopology):
        return True
    if getattr(value, "__module__", None) != module.__name__ or not callable(value):
        return False
    return _accepted(bolt_of, value) or _accepted(declaration_of, value)


def _accepted(read: Any, value: Any) -> bool:
    try:
        read(value)
    except WindowingError:
        return False
    return True


def mistakes_of(declared: Callable[[], Any]) -> list[str]:
    """Return the mistakes of what a call returns, one sentence each: of a topology, or of the declaration of a component."""
    try:
        value = declared()
        if isinstance(value, TopologyBuilder):
            value = value.build()
        if isinstance(value, Topology | TridentTopology) or _accepted(bolt_of, value):
            execution_plan(value)
    except WindowingError as problem:
        return list(getattr(problem, "problems", ())) or [str(problem)]
    return []


def json_of(file: Path) -> Any:
    """Return the JSON of a file: one document, or one document per line (.jsonl). Raises CommandRefused."""
    try:
        text = file.read_text(encoding="utf-8")
        return (
            [json.loads(line) for line in text.splitlines() if line.strip()]
            if file.suffix == ".jsonl"
            else json.loads(text)
        )
    except OSError as problem:
        raise CommandRefused(f"{file} cannot be read: {problem.strerror or problem}; correct the path") from problem
    except (ValueError, RecursionError) as problem:
        raise CommandRefused(
            f"{file} cannot be read as JSON: {problem}; give one JSON document, or a .jsonl file with a row on each line"
        ) from problem
