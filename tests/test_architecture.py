"""The law of direction: the allowed imports between parts of windowing/, the purity of pure rings, and the length of code.

The table `RINGS` defines what is allowed; the rest checks the sources as syntax trees, without importing them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "windowing"
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70


@dataclass(frozen=True)
class Ring:
    """The other rings and packages that a ring may import; a pure ring may not import the modules in `IMPURE`."""

    rings: frozenset[str]
    packages: frozenset[str]
    pure: bool = False


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def pure(rings: str = "", packages: str = "") -> Ring:
    return Ring(words(rings), words(packages), pure=True)


def driver(rings: str = "", packages: str = "") -> Ring:
    return Ring(words(rings), words(packages))


PURE_RINGS = "errors codec schema windows acking topology trident execution"

# A ring is a folder or a module directly under windowing/. A ring that is not in this table is refused.
RINGS = {
    "errors": pure(),
    "codec": pure("errors"),
    "schema": pure("errors", "xxhash"),
    "windows": pure("errors schema codec", "sortedcontainers"),
    "acking": pure("errors"),
    "topology": pure("errors codec schema windows"),
    "execution": pure("errors codec schema windows acking topology"),
    "trident": pure("optional errors codec schema windows acking topology execution"),
    "__init__": pure(f"optional {PURE_RINGS}"),
    "columnar": driver("optional errors schema windows topology", "pyarrow numpy pandas"),
    "stores": driver("optional errors codec schema windows topology trident", "psycopg redis"),
    "queues": driver(
        "optional errors codec schema windows trident columnar stores", "pyarrow redis pika confluent_kafka"
    ),
    "local": driver(f"optional {PURE_RINGS} columnar stores queues", "matplotlib"),
    "monitoring": driver(f"optional {PURE_RINGS} local", "prometheus_client opentelemetry"),
    "spark": driver(f"optional {PURE_RINGS} columnar stores queues monitoring", "pyspark pandas pyarrow numpy"),
    "testing": driver(f"optional {PURE_RINGS} columnar stores local", "hypothesis sortedcontainers"),
    "cli": driver(f"{PURE_RINGS} columnar stores local spark monitoring testing __init__", "click typer rich"),
    "optional": driver("errors"),
    "__main__": driver("cli"),
}

# Standard modules with effects or hidden inputs: clocks, randomness, threads, files, processes, the network.
IMPURE = words("""
    time datetime zoneinfo calendar sched random secrets uuid
    threading _thread queue asyncio concurrent multiprocessing contextvars signal
    logging os pathlib io shutil tempfile glob fileinput sqlite3 dbm
    socket socketserver ssl select selectors http urllib ftplib smtplib
    subprocess pty ctypes mmap platform getpass locale importlib
""")

# timedelta is a value, not a clock: users give lengths as timedelta. Nothing else of datetime is allowed, except where values
# are encoded and decoded: there date and datetime are values too.
TIMEDELTA_PLACES = ("topology/", "trident/", "windows/measures.py")
DATES_PLACES = ("codec.py", "schema/values.py", "schema/messages.py")

UNSAFE = words("pickle _pickle cPickle marshal shelve cloudpickle dill joblib")
UNSAFE_CALLS = words("eval exec __import__ os.system os.popen builtins.eval builtins.exec")
IMPURE_CALLS = words("""
    open input print breakpoint builtins.open builtins.input builtins.print
    date.today datetime.today datetime.now datetime.utcnow
""")

WHY = {
    "pyspark": "only windowing/spark touches Spark, so that everything else runs and is tested without a JVM",
    "hypothesis": "only windowing/testing uses Hypothesis, which users of the library need not have",
}
WHY_IMPURE = "a pure ring takes time, chance and data as events and returns what is to be done; a driver does it"
WHY_UNSAFE = "state and messages are plain data: a pickle runs code when it is read, and breaks when a class changes"
WHY_UNSAFE_CALL = "text must never become code or a shell command"
WHY_NUMBERED = "sqlite3 of Python 3.12.1 warns of ?1 where the values are a sequence: write ? and give the value twice"
WHY_TIMEDELTA = "a pure ring may take from datetime only `from datetime import timedelta`, and not everywhere"


@dataclass(frozen=True)
class Import:
    """One imported name, absolute and dotted: `from ..core import queue` in windowing/spark is windowing.windows.queue."""

    name: str
    line: int
    of_module: str  # the module after `from`, or the name itself

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def imports(tree: ast.Module, package: list[str]) -> Iterator[Import]:
    """Yield every import of the tree, at any depth; `package` is the dotted path of the file's folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(f"{module}.{alias.name}", node.lineno, module) for alias in node.names)


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call with the dotted name of the called function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node, ast.unparse(node.func)


def ring_imported(name: str) -> str:
    """Return the ring that an absolute name under windowing belongs to: `__init__` for the package itself."""
    ring = [*name.split("."), "__init__"][1]
    return ring if ring in RINGS else "__init__"


def listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def why_not_standard(found: Import, path: str) -> str | None:
    """Return the reason why a file of a pure ring may not import this standard module, or None."""
    if found.package not in IMPURE:
        return None
    if found.package != "datetime":
        return WHY_IMPURE
    if path in DATES_PLACES and found.of_module == "datetime" and found.name != "datetime":
        return None
    is_timedelta = found.name == "datetime.timedelta" and found.of_module == "datetime"
    return None if is_timedelta and path.startswith(TIMEDELTA_PLACES) else WHY_TIMEDELTA


def why_not(found: Import, ring_name: str, path: str) -> str | None:
    """Return the reason why the file `path` (relative to windowing/) of this ring may not import this, or None."""
    ring = RINGS[ring_name]
    if UNSAFE & set(found.name.split(".")):
        return WHY_UNSAFE
    if found.package == "windowing":
        known = ring_imported(found.name) in ring.rings | {ring_name}
        return None if known else f"of windowing, the ring {ring_name} may import only: {listed(ring.rings)}"
    if found.package == "typing_extensions":
        return None  # for type checkers only: a test below sees that it is not loaded
    if found.package in sys.stdlib_module_names:
        return why_not_standard(found, path) if ring.pure else None
    if found.package in ring.packages:
        return None
    return WHY.get(
        found.package, f"of installed packages, the ring {ring_name} may import only: {listed(ring.packages)}"
    )


def asks_for_a_shell(call: ast.Call) -> bool:
    """Whether the call has `shell=` with anything but a constant that is false."""
    asked = [keyword.value for keyword in call.keywords if keyword.arg == "shell"]
    return any(not isinstance(value, ast.Constant) or bool(value.value) for value in asked)


def numbers_its_values(call: ast.Call, name: str) -> bool:
    """Whether the call executes SQL with a placeholder that has a number, `?1`."""
    if name.rpartition(".")[2] not in ("execute", "executemany"):
        return False
    texts = (node.value for sql in call.args[:1] for node in ast.walk(sql) if isinstance(node, ast.Constant))
    return any(isinstance(text, str) and re.search(r"\?\d", text) for text in texts)


def call_violations(tree: ast.Module, *, is_pure: bool) -> Iterator[tuple[int, str]]:
    for call, name in calls(tree):
        if name in UNSAFE_CALLS:
            yield call.lineno, f"calls {name}(): {WHY_UNSAFE_CALL}"
        elif asks_for_a_shell(call):
            yield call.lineno, f"calls {name}(shell=...): {WHY_UNSAFE_CALL}"
        elif numbers_its_values(call, name):
            yield call.lineno, f"calls {name}() with a numbered placeholder: {WHY_NUMBERED}"
        elif is_pure and name in IMPURE_CALLS:
            yield call.lineno, f"calls {name}(): {WHY_IMPURE}"


parsed = cache(ast.parse)


def sources(root: Path) -> Iterator[tuple[str, ast.Module, str]]:
    """Yield (path relative to windowing/, tree, text) of every file, in order."""
    for file in sorted(root.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        yield file.relative_to(root).as_posix(), parsed(text), text


def violations(root: Path) -> list[str]:
    """Return a sentence for every breach of the law of direction under `root`, a folder laid out as windowing/."""
    found = []
    for path, tree, _ in sources(root):
        ring_name = path.split("/")[0].removesuffix(".py")
        if ring_name not in RINGS:
            found.append(f"windowing/{path}:1 is in no ring: add {ring_name!r} to RINGS with what it may import")
            continue
        package = ["windowing", *path.split("/")[:-1]]
        for imported in imports(tree, package):
            if reason := why_not(imported, ring_name, path):
                found.append(f"windowing/{path}:{imported.line} imports {imported.name}: {reason}")
        for line, sentence in call_violations(tree, is_pure=RINGS[ring_name].pure):
            found.append(f"windowing/{path}:{line} {sentence}")
    return found


def length_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return lines
    return lines - ((first.end_lineno or first.lineno) - first.lineno + 1)


def too_long(root: Path) -> list[str]:
    """Return a sentence for every file and every function under `root` that is longer than the limit."""
    found = []
    for path, tree, text in sources(root):
        if (lines := len(text.splitlines())) > MAX_FILE_LINES:
            found.append(
                f"windowing/{path} has {lines} lines, more than {MAX_FILE_LINES}: move a whole thing out of it"
            )
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (lines := length_without_docstring(node)) > MAX_FUNCTION_LINES:
                found.append(
                    f"windowing/{path}:{node.lineno} {node.name}() has {lines} lines without its docstring,"
                    f" more than {MAX_FUNCTION_LINES}: ifs up, fors down"
                )
    return found


def plant(root: Path, path: str, text: str) -> Path:
    """Write one file into a temporary tree laid out as windowing/, and return the tree."""
    file = root / "windowing" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return root / "windowing"


def test_every_import_follows_the_law_of_direction() -> None:
    assert any(ROOT.rglob("*.py")), f"no sources found in {ROOT}"
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_no_file_and_no_function_is_too_long() -> None:
    found = too_long(ROOT)
    assert not found, "\n" + "\n".join(found)


STORMS_OWN = {"Count"}
"""Storm has two classes of this name: a window length in tuples, and a Trident aggregator."""


def names_of_classes(root: Path) -> dict[str, list[str]]:
    """Return the files of each class at the top of a file, by its name."""
    found: dict[str, list[str]] = {}
    for path, tree, _ in sources(root):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path)
    return found


def test_class_names_are_unique() -> None:
    twice = {name: paths for name, paths in names_of_classes(ROOT).items() if len(paths) > 1}
    assert twice.keys() <= STORMS_OWN, twice


def test_the_checker_reports_a_duplicate_class_name(tmp_path: Path) -> None:
    plant(tmp_path, "windows/a.py", "class Row: ...")
    assert names_of_classes(plant(tmp_path, "local/b.py", "class Row: ..."))["Row"] == ["local/b.py", "windows/a.py"]


OTHER_WORDS = {
    **dict.fromkeys(("blame", "blamed"), "a user-code error"),
    **dict.fromkeys(("bury", "buried"), "send to the dead letters"),
    **dict.fromkeys(("crew", "hall", "hub"), "tasks, a router, the run's result"),
    **dict.fromkeys(("draft", "sketch"), "a declaration"),
    **dict.fromkeys(("fell", "plant", "planted"), "begin or end a tree of tuples"),
    **dict.fromkeys(("hear", "learn"), "merge a watermark, observe"),
    **dict.fromkeys(("hop", "wire", "wiring"), "an exchange; the execution context"),
    **dict.fromkeys(("keeper", "keepers"), "a checkpointed task"),
    **dict.fromkeys(("outlet", "outlets"), "a collector, output streams"),
    **dict.fromkeys(("stranger", "strangers"), "late insertions"),
}
"""Former words in names of functions and classes, with the terms that replaced them; docs/development.md has the glossary."""


def other_words(root: Path) -> list[str]:
    """Return a sentence for every class and function under `root` whose name has one of OTHER_WORDS."""
    return [
        f"windowing/{path}:{node.lineno} {node.name}: say {OTHER_WORDS[word]!r}"
        for path, tree, _ in sources(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for word in re.findall(r"[a-z]+", re.sub("[A-Z]", lambda big: f" {big[0].lower()}", node.name))
        if word in OTHER_WORDS
    ]


def test_names_of_classes_and_functions_use_the_terms_of_the_glossary() -> None:
    assert other_words(ROOT) == []


def test_the_checker_reports_a_former_word_in_a_name(tmp_path: Path) -> None:
    plant(tmp_path, "windows/a.py", "class LetterKeeper:\n    def hearing(self): ...\n")
    assert other_words(plant(tmp_path, "local/b.py", "def _bury_it(): ...")) == [
        "windowing/local/b.py:1 _bury_it: say 'send to the dead letters'",
        "windowing/windows/a.py:1 LetterKeeper: say 'a checkpointed task'",
    ]


def test_rings_allows_only_imports_of_known_rings() -> None:
    unknown = {name: ring.rings - RINGS.keys() for name, ring in RINGS.items() if ring.rings - RINGS.keys()}
    assert not unknown, f"RINGS lets rings import what is no ring: {unknown}"


def test_importing_windowing_loads_no_optional_package() -> None:
    optional = (
        "{'pyspark', 'py4j', 'hypothesis', 'pandas', 'pyarrow', 'numpy', 'psycopg', 'redis', 'typing_extensions'}"
    )
    code = f"import sys; import windowing; print(*sorted({optional} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], f"import windowing loads {done.stdout.strip()}: import these where they are used"


@pytest.mark.parametrize(
    ("path", "text", "culprit", "reason"),
    [
        ("windows/manager.py", "import time", "windowing/windows/manager.py:1 imports time:", WHY_IMPURE),
        (
            "windows/manager.py",
            "x = 1\nimport os.path as p",
            "windowing/windows/manager.py:2 imports os.path:",
            WHY_IMPURE,
        ),
        ("acking/a.py", "def f():\n    from random import random", "windowing/acking/a.py:2", WHY_IMPURE),
        ("acking/a.py", "print(open('x'))", "windowing/acking/a.py:1 calls open():", WHY_IMPURE),
        ("windows/queue.py", "from datetime import timedelta", "imports datetime.timedelta", WHY_TIMEDELTA),
        ("windows/measures.py", "from datetime import datetime", "imports datetime.datetime", WHY_TIMEDELTA),
        ("topology/t.py", "import datetime", "imports datetime:", WHY_TIMEDELTA),
        ("codec.py", "import datetime", "imports datetime:", WHY_TIMEDELTA),
        ("codec.py", "from datetime import datetime\nx = datetime.now()", "calls datetime.now():", WHY_IMPURE),
        (
            "windows/a.py",
            "from windowing.spark import session",
            "imports windowing.spark.session",
            "only: codec, errors, schema",
        ),
        ("windows/a.py", "from ..local import clock", "imports windowing.local.clock", "only: codec, errors, schema"),
        ("windows/a.py", "from .. import local", "imports windowing.local:", "only: codec, errors, schema"),
        ("windows/a.py", "from windowing import Count", "imports windowing.Count", "only: codec, errors, schema"),
        ("errors.py", "from . import windows", "imports windowing.windows:", "only: nothing"),
        ("spark/__init__.py", "from ..testing import replay", "imports windowing.testing.replay", "the ring spark"),
        ("__init__.py", "from .spark import session", "windowing/__init__.py:1", "the ring __init__"),
        ("local/loop.py", "import pyspark.sql", "imports pyspark.sql", "only windowing/spark touches Spark"),
        ("windows/a.py", "import hypothesis", "imports hypothesis", "only windowing/testing uses Hypothesis"),
        ("windows/a.py", "import numpy", "imports numpy", "only: sortedcontainers"),
        ("spark/a.py", "from pyspark import cloudpickle", "imports pyspark.cloudpickle", WHY_UNSAFE),
        ("testing/a.py", "import pickle", "imports pickle", WHY_UNSAFE),
        ("local/a.py", "x = eval('1')", "windowing/local/a.py:1 calls eval():", WHY_UNSAFE_CALL),
        ("local/a.py", "import subprocess as s\ns.run('ls', shell=True)", "calls s.run(shell=...):", WHY_UNSAFE_CALL),
        (
            "stores/a.py",
            "db.execute('DELETE FROM t WHERE a = ?1', (1,))",
            "a.py:1 calls db.execute() with",
            WHY_NUMBERED,
        ),
        ("stores/a.py", "db.executemany(f'UPDATE {t} SET a = ?2', rows)", "calls db.executemany() with", WHY_NUMBERED),
        ("attic/a.py", "", "windowing/attic/a.py:1 is in no ring", "add 'attic' to RINGS"),
    ],
)
def test_the_checker_reports_each_kind_of_violation(
    tmp_path: Path, path: str, text: str, culprit: str, reason: str
) -> None:
    found = violations(plant(tmp_path, path, text))
    assert any(culprit in sentence and reason in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "windows/manager.py",
            "from __future__ import annotations\nimport bisect\nfrom sortedcontainers import SortedList",
        ),
        ("windows/manager.py", "from . import queue\nfrom .queue import Buffer\nfrom ..errors import WindowingError"),
        ("windows/measures.py", "from datetime import timedelta"),
        ("codec.py", "from datetime import date, datetime, timedelta"),
        ("schema/values.py", "from datetime import UTC, date, datetime"),
        (
            "topology/decorators.py",
            "import warnings\nfrom datetime import timedelta\nfrom windowing.windows import measures",
        ),
        ("__init__.py", "from windowing.windows.measures import Count\nfrom .topology import tumbling"),
        ("local/clock.py", "import time\nfrom ..windows.manager import WindowManager"),
        ("spark/a/b.py", "import pyspark\nfrom ...windows import manager\nfrom ..pack import unpack\nframe.eval('a')"),
        ("testing/strategies.py", "import hypothesis.strategies"),
        ("stores/a.py", "db.execute('DELETE FROM t WHERE a = ? OR b = ?', (1, 1))\nprint('what?1')"),
    ],
)
def test_the_checker_accepts_allowed_imports_and_calls(tmp_path: Path, path: str, text: str) -> None:
    assert violations(plant(tmp_path, path, text)) == []


def test_the_checker_reports_files_and_functions_that_are_too_long(tmp_path: Path) -> None:
    line = "    x = 1\n"
    root = plant(tmp_path, "windows/function.py", "def f():\n" + MAX_FUNCTION_LINES * line)
    docstring = '    """One.\n\n    Two.\n    """\n'
    plant(tmp_path, "windows/fine.py", "def f():\n" + docstring + (MAX_FUNCTION_LINES - 1) * line)
    plant(tmp_path, "windows/file.py", "x = 1\n" * (MAX_FILE_LINES + 1))
    assert [sentence.split(" has ")[0] for sentence in too_long(root)] == [
        "windowing/windows/file.py",
        "windowing/windows/function.py:1 f()",
    ]
