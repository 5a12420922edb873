"""Every command of the command line except `replay`: its output, escaping of data, and exit codes."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from windowing import cli
from windowing.acking.batches import BatchRecord, RootPartial
from windowing.cli import commands, loading, templates
from windowing.cli.doctor import Finding, diagnose
from windowing.cli.loading import CommandRefused
from windowing.cli.stored import LocalFiles, metrics_in, page_of, read_checkpoint
from windowing.codec import dumps, frame
from windowing.errors import ConfigError, DefinitionChangedError, SessionError
from windowing.execution.metrics import FiredWindow, RunMetrics, SlowestInput, TaskMetrics, sealed
from windowing.stores import MemoryStore, SqliteStore, map_state
from windowing.trident import Count, FixedBatchSpout, TridentTopology
from windowing.trident.fence import Claim, Fence, PartitionId, StateRow
from windowing.trident.kinds import StateType, TransactionAttempt

ROOT = Path(__file__).parents[1]
BOLTS = """
from windowing import *

@tumbling(count(2), output="n long")
def two(window):
    return len(window)

def topology():
    builder = TopologyBuilder("t")
    builder.set_spout("rows", InputSpout("word string"))
    builder.set_bolt("two", two).shuffle_grouping("rows")
    return builder.build()
"""

TRIDENT = """
from windowing.trident import Count, FixedBatchSpout, TridentTopology

def topology():
    made = TridentTopology("words")
    words = made.new_stream("words", FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)]))
    words.group_by("word").aggregate(None, Count(), "n long").sink("counts")
    return made
"""


def run(*arguments, folder=None):
    before = Path.cwd()
    os.chdir(folder or before)
    try:
        return CliRunner().invoke(commands, [str(each) for each in arguments])
    finally:
        os.chdir(before)


@pytest.fixture
def bolts(tmp_path):
    file = tmp_path / "bolts.py"
    file.write_text(BOLTS)
    return file


def test_the_job_that_new_creates_passes_check_explain_run_and_its_tests(tmp_path):
    assert run("new", "my_job", folder=tmp_path).exit_code == 0
    job = tmp_path / "my_job"
    for file in ("bolts.py", "job.py"):
        checked = run("check", job / file)
        assert checked.exit_code == 0, checked.output
    shown = run("explain", f"{job}/bolts.py:count_words", job / "rows.json")
    assert "late, watermark 11 s: late 9 s" in shown.output
    ran = run("run", f"{job}/job.py:topology", "--rows", job / "batches.json", "--show", "1")
    assert ran.exit_code == 0, ran.output
    assert "count: 5000, 2, 'to be'" in ran.output
    printed = []
    for command in (["job.py"], ["-m", "pytest", "-q", "-p", "no:cacheprovider"]):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *command], cwd=job, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    assert "10000 4 to be not or\n" in printed[0]
    assert printed[0].endswith("late: [('late', 9000, 'late')]\n")  # as explain and run show it


def test_mypy_strict_accepts_the_project_that_new_creates(tmp_path):
    assert run("new", "my_job", folder=tmp_path).exit_code == 0
    command = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path / "my_job",
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found in 3 source files" in done.stdout


def test_check_of_a_name_in_a_file_says_that_it_takes_the_file(bolts):
    done = run("check", f"{bolts}:two")
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert "check takes a whole file, 'two' included; write: windowing check" in said


@pytest.mark.parametrize("name", ["no-name", "1st", "a b"])
def test_new_refuses_an_invalid_name(tmp_path, name):
    assert run("new", name, folder=tmp_path).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_new_does_not_overwrite_an_existing_folder(bolts):
    done = run("new", "bolts", folder=bolts.parent)
    (bolts.parent / "taken").mkdir()
    assert done.exit_code == 0
    done = run("new", "taken", folder=bolts.parent)
    assert done.exit_code == 2
    assert "is there already" in done.output


def test_check_reports_all_mistakes_of_a_topology(bolts):
    bolts.write_text(
        BOLTS.replace('shuffle_grouping("rows")', 'shuffle_grouping("rows", "none").fields_grouping("nobody", "word")')
    )
    done = run("check", bolts)
    assert done.exit_code == 1
    assert "two: no mistake found" in done.output
    assert "topology(): 2 found" in done.output
    assert "nobody" in done.output
    assert "none" in done.output


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("import windowing\n1 / 0", 1, ":2: ZeroDivisionError: division by zero"),
        ("def f(:", 1, ":1: SyntaxError"),
        ("import no_such_module_here", 1, "ModuleNotFoundError"),
        ("raise SystemExit(3)", 1, ":1: SystemExit: 3"),
        ("x = 1", 2, "declares no bolt, spout or topology"),
        ("from windowing import *\n\n@tumbling(seconds(0), output='n long')\ndef f(window): ...", 1, ":3: [CONFIG]"),
    ],
)
def test_check_shows_the_error_and_line_of_a_broken_file(tmp_path, text, code, sentence):
    file = tmp_path / "broken.py"
    file.write_text(text)
    done = run("check", file)
    assert done.exit_code == code, done.output
    assert sentence in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["explain", "bolts.py"], "write FILE:NAME"),
        (["explain", "none.py:two"], "there is no file 'none.py'"),
        (["explain", "bolts.py:tow"], "did you mean 'two'"),
        (["explain", "bolts.py:counts"], "has no 'counts'; there are topology, two"),
        (
            ["explain", "bolts.py:two", "none.json"],
            "none.json cannot be read: No such file or directory; correct the path",
        ),
        (["explain", "bolts.py:two", "bolts.py"], "cannot be read as JSON"),
        (
            ["run", "bolts.py:topology"],
            'give them with --rows FILE, a JSON file of the form {"rows": [[row, row], [row]]}',
        ),
        (["ui", "none"], "there is no folder 'none'; give the checkpoint= of a query, or FILE:TOPOLOGY"),
        (["run", "bolts.py:two"], "is a bolt alone, wanted a topology; write `windowing explain bolts.py:two ROWS`"),
        (["run", "bolts.py:topology", "--rows", "rows.json"], 'holds no batches; write {"rows": [[row, row], [row]]}'),
        (["run", "bolts.py:topology", "--for", "nan"], "nan is no number of seconds"),
        (["run", "bolts.py:topology", "--for", "inf"], "inf is no number of seconds"),
        (["run", "bolts.py:topology", "--show", "-1"], "-1 is not in the range x>=0"),
        (["status", "none"], "there is no folder none, or it is empty"),
        (["status", "none"], "one on HDFS is hdfs:///"),
        (["status", "."], "is no checkpoint"),
        (["states", "none.db"], "there is no file 'none.db'"),
    ],
)
def test_a_usage_error_is_one_sentence_with_exit_code_2(bolts, arguments, sentence):
    (bolts.parent / "rows.json").write_text("[1]")
    done = run(*arguments, folder=bolts.parent)
    assert done.exit_code == 2, done.output
    assert sentence in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_function_that_needs_arguments_is_refused_with_their_names(bolts, command):
    bolts.write_text(BOLTS.replace("def topology():", "def topology(address, port, tasks=2, *others, **options):"))
    done = run(command, *(bolts if command == "check" else f"{bolts}:topology",))
    assert done.exit_code == 2, done.output
    assert "it needs address, port; give each a default value" in done.output
    bolts.write_text(BOLTS.replace("def topology():", "def topology(tasks=2, *others, **options):"))
    assert run("check", bolts).exit_code == 0


def test_run_of_a_trident_topology_without_rows_names_the_option_rows(tmp_path):
    file = tmp_path / "trident.py"
    file.write_text(
        TRIDENT.replace('FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)])', 'InputSpout("word string")')
    )
    file.write_text("from windowing import InputSpout\n" + file.read_text())
    assert "--rows FILE of the command line" in run("run", f"{file}:topology").output


def test_run_shows_the_number_of_rows_that_it_omits(bolts):
    (bolts.parent / "rows.json").write_text(json.dumps({"rows": [["a"], ["b"], ["c"]]}))
    given = ("run", f"{bolts}:topology", "--rows", bolts.parent / "rows.json")
    assert "two: 1 more row\n" in run(*given, "--show", 1).output
    assert "two: 2 rows\n" in run(*given).output


def test_explain_writes_svg_and_png(bolts):
    folder = bolts.parent
    (folder / "rows.json").write_text(json.dumps([{"word": "a"}, {"word": "b"}]))
    done = run("explain", f"{bolts}:two", folder / "rows.json", "--svg", folder / "x.svg", "--png", folder / "x.png")
    assert done.exit_code == 0, done.output
    assert (folder / "x.svg").read_text().startswith("<svg")
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "two ×1" in run("explain", f"{bolts}:two").output


def test_explain_prints_the_plan_of_a_topology_and_of_a_function_that_returns_one(bolts):
    shown = run("explain", f"{bolts}:topology")
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("plan ")
    assert "two ×" in shown.output


@pytest.mark.filterwarnings("always::windowing.InvalidTimestampWarning")
def test_a_warning_of_a_command_is_one_line_without_a_place(bolts):
    bolts.write_text(BOLTS.replace("count(2)", "seconds(2), timestamp='at'"))
    (bolts.parent / "rows.json").write_text(json.dumps([{"word": "a"}]))
    before = warnings.showwarning
    done = run("explain", f"{bolts}:two", bolts.parent / "rows.json")
    assert done.exit_code == 0, done.output
    warning = done.output.splitlines()[0]  # click 8.1 has no `stderr` apart
    assert warning.startswith("InvalidTimestampWarning: bolt 'two': field 'at' is asked for")
    assert ".py:" not in done.output
    assert warnings.showwarning is before


def test_run_shows_the_counters_of_its_components(bolts):
    (bolts.parent / "rows.json").write_text(json.dumps({"rows": [[["a"], ["b\x1b[31m"]], [["c"]]]}))
    done = run("run", f"{bolts}:topology", "--rows", bolts.parent / "rows.json")
    assert done.exit_code == 0, done.output
    cells = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in done.output.splitlines()
        if line.startswith("│")
    }
    assert cells["rows"][:4] == ["1", "3", "", "3"]
    assert cells["two"][:5] == ["1", "2", "3", "3", "0"]
    assert "messages acked 3, failed attempts 0, in flight 0" in done.output


FAILING = """
from windowing import *

@bolt()
class picky(Bolt):
    def execute(self, row):
        if row.word == "silent":
            self.collector.fail(row)
        else:
            raise (ReportedFailedException if row.word == "reported" else FailedException)("not " + row.word)

def topology():
    builder = TopologyBuilder("t").configure(max_attempts=1)
    builder.set_spout("rows", InputSpout("word string"))
    builder.set_bolt("picky", picky).shuffle_grouping("rows")
    return builder.build()
"""


def test_run_shows_the_first_dead_letters_and_reported_errors(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    words = ["reported", "silent", "a", "b"]
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [[[word] for word in words]]}))
    done = run("run", tmp_path / "failing.py:topology", "--rows", tmp_path / "rows.json")
    assert done.exit_code == 1, done.output
    for why in ("failed", "FailedException: [FAILED] not a", "ReportedFailedException: [REPORTED] not reported"):
        assert f"dead letter of picky: {why}, attempts 1, tuples [Tuple(rows:default[0], {{'word': " in done.output
    assert done.output.count("; raise FailedException in place of collector.fail to see the error") == 1
    assert "error of picky[0]: ReportedFailedException: [REPORTED] not reported\n" in done.output


def test_run_executes_a_trident_topology_and_shows_its_groups(tmp_path):
    file = tmp_path / "trident.py"
    file.write_text(TRIDENT)
    done = run("run", f"{file}:topology", "--show", 9)
    assert done.exit_code == 0, done.output
    assert "counts: 'to', 2" in done.output or "counts: 'to', 1" in done.output
    assert "batches committed 2, failed attempts 0" in done.output
    assert "words" in done.output


def test_a_checkpoint_elsewhere_whose_path_has_an_at_sign_is_named_as_it_is(tmp_path):
    class There(LocalFiles):
        def __str__(self):
            return "hdfs://node:8020/a@b"

    with pytest.raises(CommandRefused, match="there is no folder hdfs://node:8020/a@b, or it is empty"):
        read_checkpoint(There(tmp_path / "none"))


TYPED = """
from windowing import *

FIELDS = "at timestamp, day date, price decimal(5,2), raw binary, more struct<at: timestamp, n: int>, days map<date, decimal(3,1)>"

@bolt(output="text string")
def shown(row):
    return (repr((row.at.isoformat(), row.day, row.price, row.raw, row.more["at"].hour, dict(row.days))),)

def topology():
    builder = TopologyBuilder("typed")
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("shown", shown).shuffle_grouping("rows")
    return builder.build()
"""
VALUES = {
    "at": "2013-01-31T12:00:00Z",
    "day": "2013-01-31",
    "price": "12.50",
    "raw": "Y2Fmw6k=",
    "more": {"at": "2013-01-31T11:00:00", "n": 7},
    "days": {"2013-02-01": 3},
}


@pytest.mark.parametrize("row", [VALUES, [*VALUES.values()]], ids=["object", "list"])
def test_run_reads_times_decimals_and_bytes_of_rows_by_their_declared_types(tmp_path, row):
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [[row]]}))
    done = run("run", f"{tmp_path / 'typed.py'}:topology", "--rows", tmp_path / "rows.json", "--show", 1)
    assert done.exit_code == 0, done.output
    for text in (
        "2013-01-31T12:00:00+00:00",
        "datetime.date(2013, 1, 31), Decimal('12.50'), b'caf",
        "11, {datetime.date(2013, 2, 1): Decimal('3.0')}",
    ):
        assert text in done.output.replace("\\'", "'"), done.output


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("at", "soon", "a row of 'rows' cannot be read: its field at is 'soon', no timestamp; write a date"),
        ("raw", "?", "its field raw is '?', no binary"),
        ("price", 12.5, "got 12.5, wanted a Decimal"),
        ("more", {"at": None, "n": 7, "m": 8}, "'m': 8"),
        ("word", "?", "word"),
    ],
)
def test_a_row_that_is_not_of_the_declared_types_is_refused(tmp_path, field, value, sentence):
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [[VALUES | {field: value}]]}))
    done = run("run", f"{tmp_path / 'typed.py'}:topology", "--rows", tmp_path / "rows.json")
    assert done.exit_code != 0
    assert sentence in done.output


def test_run_reads_the_rows_of_a_stream_of_trident_by_their_declared_types(tmp_path):
    file = tmp_path / "trident.py"
    source = 'FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)])'
    made = TRIDENT.replace(source, 'InputSpout("word date")')
    file.write_text("from windowing import InputSpout\n" + made)
    (tmp_path / "rows.json").write_text(json.dumps({"words": [["2013-01-31", ["2013-01-31"]]]}))
    done = run("run", f"{file}:topology", "--rows", tmp_path / "rows.json", "--show", 1)
    assert done.exit_code == 0, done.output
    assert "counts: datetime.date(2013, 1, 31), 2" in done.output


COUNTING = """
from windowing import *

@bolt(output="n long")
class Counting(StatefulBolt):
    def init_state(self, state):
        self.state = state
    def execute(self, row):
        self.state.put("n", self.state.get("n", 0) + 1)
        self.collector.emit(self.state.get("n"), anchors=row)
        self.collector.ack(row)

def topology():
    builder = TopologyBuilder("t").configure(state_provider="sqlite")
    builder.set_spout("rows", InputSpout("word string"))
    builder.set_bolt("count", Counting).shuffle_grouping("rows")
    return builder.build()
"""


def test_a_run_with_a_state_continues_from_the_last_run(tmp_path):
    (tmp_path / "jobs.py").write_text(COUNTING)
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [[["a"], ["b"]]]}))
    given = (f"{tmp_path / 'jobs.py'}:topology", "--rows", tmp_path / "rows.json")
    shown = ("--state", tmp_path / "states.db", "--show", 9)
    assert "count: 1\ncount: 2" in run("run", *given, *shown).output
    assert "count: 3\ncount: 4" in run("run", *given, *shown).output
    assert run("ui", *given, *shown[:2]).exit_code == 0
    assert "count: 7\ncount: 8" in run("run", *given, *shown).output
    without = run("run", *given)
    assert without.exit_code != 0
    assert "or --state words.db of the command line" in without.output


def test_a_second_run_of_a_trident_topology_with_a_state_repeats_no_batch(tmp_path):
    (tmp_path / "jobs.py").write_text(TRIDENT)
    given = ("run", f"{tmp_path / 'jobs.py'}:topology", "--state", tmp_path / "records.db", "--show", 9)
    assert "counts: " in run(*given).output
    assert "counts: " not in run(*given).output


def test_the_help_shows_the_complete_summary_of_each_command():
    assert "..." not in run("--help").output.partition("Commands:")[2]


@pytest.mark.parametrize("which", [BOLTS, TRIDENT], ids=["topology", "trident"])
def test_ui_prints_the_address_of_the_page_and_closes_it_with_the_run(tmp_path, which):
    file = tmp_path / "jobs.py"
    file.write_text(which)
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [[["a"], ["b"]]]}))
    done = run("ui", f"{file}:topology", *(["--rows", tmp_path / "rows.json"] if which is BOLTS else []))
    assert done.exit_code == 0, done.output
    assert "open http://127.0.0.1:" in done.output
    url = done.output.split()[1]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)


def test_ui_ends_with_an_error_when_the_run_fails(bolts):
    bolts.write_text(BOLTS.replace("return len(window)", "return 1 / 0"))
    (bolts.parent / "rows.json").write_text(json.dumps({"rows": [[["a"], ["b"]]]}))
    done = run("ui", f"{bolts}:topology", "--rows", bolts.parent / "rows.json")
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.output


def test_an_error_of_a_bolt_ends_a_run_without_a_traceback(bolts):
    bolts.write_text(BOLTS.replace("return len(window)", "return 1 / 0"))
    (bolts.parent / "rows.json").write_text(json.dumps({"rows": [[["a"], ["b"]]]}))
    done = run("run", f"{bolts}:topology", "--rows", bolts.parent / "rows.json")
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.output
    assert "Traceback" not in done.output


# -- checkpoints and states -------------------------------------------------------------------------------------------------------


def checkpoint(folder, commits=(0, 1)):
    for name in ("windowing", "offsets", "commits"):
        (folder / name).mkdir(parents=True)
    definition = {
        "format": 2,
        "library": "0.2.0",
        "tasks": 4,
        "bolt": {"fixed": {"name": "words\x1b[31m", "length": {"ms": 10}}},
    }
    (folder / "windowing" / "definition.json").write_text(json.dumps(definition))
    (folder / "windowing" / "query.json").write_text('{"format": 1, "id": "5f0c"}')
    (folder / "metadata").write_text('{"id": "77e1"}')
    for batch in (0, 1):
        (folder / "offsets" / str(batch)).write_text('v1\n{"batchTimestampMs":1763863200000}\n{}')
    for batch in commits:
        (folder / "commits" / str(batch)).write_text("v1\n{}")
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_status_reads_a_checkpoint_without_a_change(tmp_path):
    folder = checkpoint(tmp_path / "c")
    before = contents(folder)
    done = run("status", folder)
    assert done.exit_code == 0, done.output
    lines = [
        re.split(" {2,}", line.strip()) for line in done.output.partition("no numbers were left here")[0].splitlines()
    ]
    assert lines[1:] == [
        ["written by", "windowing 0.2.0, format 2"],
        ["bolt", "words\\x1b[31m: length 10 ms"],
        ["grouping", "null"],
        ["tasks", "4"],
        ["query", "5f0c"],
        ["last batch begun", "1, 2025-11-23 02:00:00 UTC"],
        ["last batch committed", "1"],
        ["made again at the next start", "nothing"],
        ["drained", "no"],
        ["in use", "by no process of this machine"],
    ]
    assert "\x1b" not in done.output
    assert contents(folder) == before


def test_status_shows_that_a_checkpoint_was_rescaled_or_is_incomplete(tmp_path):
    folder = checkpoint(tmp_path / "c")
    (folder / "windowing" / "rescaled.json").write_text('{"format": 1, "to": "file:/new"}')
    said = dict(read_checkpoint(LocalFiles(folder)))
    assert said["rescaled"] == "into file:/new, which goes on in its place"
    assert "half made" not in said
    (folder / "windowing" / "rescaling.json").write_text('{"format": 1, "from": "file:/old", "tasks": 3}')
    assert (
        dict(read_checkpoint(LocalFiles(folder)))["half made"]
        == "a rescale of file:/old into it has not ended; call it again"
    )


def test_status_names_a_lost_definition_in_one_line_and_has_none_before_the_first_batch(tmp_path):
    folder = checkpoint(tmp_path / "c")
    (folder / "windowing" / "definition.json").unlink()
    assert [title for title, text in read_checkpoint(LocalFiles(folder)) if "definition" in title + text] == ["damaged"]
    shutil.rmtree(folder / "offsets")
    assert dict(read_checkpoint(LocalFiles(folder)))["definition"] == "none yet"


def test_status_shows_a_pending_batch_and_a_drained_checkpoint(tmp_path):
    folder = checkpoint(tmp_path / "c", commits=(0,))
    (folder / "windowing" / "drained.json").write_text("{}")
    output = run("status", folder).output
    assert "batch 1" in output
    assert "yes: closed for good" in output


def test_status_names_the_policies_of_a_bolt_in_place_of_its_slide(tmp_path):
    folder = checkpoint(tmp_path / "c")
    sessions = {
        "name": "sessions",
        "length": None,
        "slide": {"count": 1},
        "trigger": "SessionEnd",
        "eviction": "OneSession",
    }
    stored = {"format": 2, "bolt": {"fixed": {**sessions, "key": ["user"]}, "free": {}}}
    (folder / "windowing" / "definition.json").write_text(json.dumps(stored))
    said = dict(read_checkpoint(LocalFiles(folder)))
    assert said["bolt"] == 'sessions: trigger "SessionEnd", eviction "OneSession", key ["user"]'


TOPOLOGY_PLAN = {
    "name": "words",
    "partitions": 2,
    "spouts": [["sentences", ["default"]]],
    "levels": [
        [["upper", {"inputs": [], "stateful": False, "tasks": 1, "window": None}]],
        [
            [
                "tens",
                {
                    "inputs": [["upper:default", {"kind": "global"}, []]],
                    "stateful": True,
                    "tasks": 3,
                    "window": {"name": "tens", "length": {"ms": 10}, "slide": {"ms": 10}, "key": None},
                },
            ]
        ],
    ],
}
"""In the format of `of_topology`; tests/spark/test_query_metrics.py reads the checkpoint of a real query."""


def leave(numbers: RunMetrics, folder: Path, boxes: Sequence[Any] = (), edges: Sequence[Any] = ()) -> None:
    """Store the numbers of a run in a checkpoint, as a query does."""
    data = numbers.plain() | {"drawing": {"boxes": boxes, "edges": edges}}
    (folder / "new").write_bytes(sealed(data))
    (folder / "new").replace(folder / "windowing" / "metrics.json")


def test_status_shows_the_components_of_a_topology_and_the_metrics_of_its_last_run(tmp_path):
    folder = checkpoint(tmp_path / "c")
    (folder / "windowing" / "definition.json").write_text(json.dumps({"format": 2, "topology": TOPOLOGY_PLAN}))
    tens = TaskMetrics(
        "tens", 0, {"default": 3}, executed=9, late={"late": 2}, pending=4, watermark_ms=12_345, dead_letters=6
    )
    tens.watermark_lag_ms, more = 41_300, TaskMetrics("tens", 1, executed=700, watermark_ms=2**62, watermark_lag_ms=0)
    tens.errors = ("ValueError: \x1b[31mno",)
    run_metrics = RunMetrics(name="words", at_ms=1_763_863_201_000, tasks=(tens, more), batch=1)
    run_metrics.phases.update(triggerExecution=962.0, addBatch=815.0, walCommit=13.0, getBatch=0.0)
    run_metrics.lag["flights"] = {"0": 3, "1": 4}
    tens.slowest = SlowestInput("clicks", 2, 12_345)
    run_metrics = replace(run_metrics, ended="with BoltError: [BOLT] bolt 'tens' failed")
    leave(run_metrics, folder)
    before = contents(folder)
    output = run("status", folder).output
    assert "words in 2 partitions" in output
    assert "upper x1, depth 1, reads fused" in output
    assert "tens x3, depth 2, reads upper:default; tens: length 10 ms" in output
    assert "stateful" in output
    assert "up to batch 1, 2025-11-23 02:00:01 UTC" in output
    assert all(part in output for part in ("1970-01-01 00:00:12", "41.3 s"))
    assert (
        " ".join(output.split()).count("batch 1 took 962 ms: addBatch 815, walCommit 13; flights is 7 offsets behind")
        == 1
    )
    assert ("709" in output, "tens[1]" in output) == (True, False)
    by_task = run("status", folder, "--tasks").output
    assert ("tens[1]" in by_task, "700" in by_task, str(2**62) in by_task) == (True, True, True)
    waits = "the watermark waits for stream clicks, source 2, whose newest tuple is of 1970-01-01 00:00:12 UTC"
    for said in ("6 dead letters", "2 late, with the reason late", waits):
        assert f"tens: {said}\n" in output
    assert "the last run ended with BoltError: [BOLT] bolt 'tens' failed\n" in output
    told = json.loads(run("status", folder, "--json").output)
    assert (told["last batch committed"], len(told["bolt"])) == (["1"], 2)
    assert RunMetrics.of(told["metrics"]) == run_metrics
    assert "\x1b[31m" not in output.replace("\\x1b", "")
    assert contents(folder) == before


def test_status_says_that_an_input_had_no_tuple_yet_and_counts_one_dead_letter(tmp_path):
    folder = checkpoint(tmp_path / "c")
    count = TaskMetrics("count", 0, slowest=SlowestInput("clicks", None, None), dead_letters=1)
    stored = RunMetrics(name="count", at_ms=1_763_863_201_000, tasks=(count,), ended="")
    leave(stored, folder)
    output = run("status", folder).output
    assert "count: the watermark waits for stream clicks, which had no tuple yet\n" in output
    assert "count: 1 dead letter\n" in output


def test_status_says_nothing_of_a_watermark_that_has_one_input_and_of_a_batch_that_was_not_made(tmp_path):
    folder = checkpoint(tmp_path / "c")
    count = TaskMetrics("count", 0, slowest=SlowestInput("default", None, 5))
    stored = RunMetrics(name="count", at_ms=1_763_863_201_000, tasks=(count,), ended="when it was stopped")
    leave(stored, folder)
    output = run("status", folder).output
    assert "the watermark waits for" not in output
    assert "the last run of count, before its first batch, 2025" in output
    assert "the last run ended when it was stopped" in output


def test_status_names_the_process_that_uses_the_checkpoint(tmp_path):
    folder = checkpoint(tmp_path / "c")
    assert "by no process of this machine" in run("status", folder).output
    taken = os.open(folder, os.O_RDONLY)
    fcntl.flock(taken, fcntl.LOCK_EX)
    assert f"by process {os.getpid()} of this machine" in run("status", folder).output
    os.close(taken)
    assert json.loads(run("status", folder, "--json").output)["metrics"] is None


def test_ui_of_a_checkpoint_follows_the_stored_metrics_and_changes_nothing(tmp_path, monkeypatch):
    folder = checkpoint(tmp_path / "c")
    done = run("ui", folder)
    assert (done.exit_code, "has no numbers yet" in done.output) == (2, True)
    file = folder / "windowing" / "metrics.json"

    def after(executed: int) -> RunMetrics:
        return RunMetrics(
            name="words", at_ms=1, tasks=(TaskMetrics("tens", 0, {"default": 3}, executed=executed),), batch=1
        )

    leave(after(9), folder)
    assert run("ui", folder, "--for", "0.05").output.startswith("open http://127.0.0.1:")
    with monkeypatch.context() as patch:
        patch.setattr("threading.TIMEOUT_MAX", 0.05)
        assert run("ui", folder, "--for", "1e300").exit_code == 0, "longer than a thread can wait"
    box, edge = (
        {"name": "tens", "lines": ["tens x3"], "shape": "bolt"},
        {"source": "a", "target": "tens", "label": "global"},
    )
    leave(after(9), folder, [box], [edge | {"dotted": False, "count": [None, None, "tens"]}])
    before = contents(folder)
    with page_of(LocalFiles(folder), 0) as page:
        shown = json.loads(urllib.request.urlopen(f"{page.url}now", timeout=10).read())
        assert (shown["boxes"], shown["edges"][0]["count"], shown["as_of"]) == ([box], 9, 1)
        assert contents(folder) == before
        leave(after(11), folder)
        assert eventually(lambda: urllib.request.urlopen(f"{page.url}now", timeout=10).read().count(b'"executed": 11'))
        file.write_text("{")
        assert eventually(lambda: b"is damaged" in urllib.request.urlopen(f"{page.url}now", timeout=10).read())
        file.unlink()
        assert eventually(lambda: b"no numbers any more" in urllib.request.urlopen(f"{page.url}now", timeout=10).read())
    refused = run("ui", folder, "--rows", __file__)
    assert (refused.exit_code, "leave out --rows" in refused.output) == (2, True)
    assert run("ui", tmp_path).exit_code == 2


def eventually(holds: Callable[[], object]) -> bool:
    """Whether `holds` is true within ten seconds: the page reads the file once a second."""
    until = time.monotonic() + 10
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_status_shows_the_streams_windows_and_states_of_a_trident_checkpoint(tmp_path):
    topology = TridentTopology("counts")
    words = topology.new_stream("words", FixedBatchSpout("word string", 2, [("to",)]))
    words.group_by("word").persistent_aggregate(map_state(MemoryStore(), "counted"), None, Count(), "n long")
    plan = topology.build().by_section()
    folder = checkpoint(tmp_path / "c")
    written = {"format": 2, **plan.stream(2, {"state1": "counted"})}
    (folder / "windowing" / "definition.json").write_text(json.dumps(written))
    output = run("status", folder).output
    assert "counts in 2 partitions" in output
    assert "words" in output
    assert "counted" in output
    meanings = {"counted": {"aggregator": "Count", "key": "word"}}
    written["trident"]["states"] = {"format": 1, "id": "a", "since": {"counted": 1, "seen": 4}, "meanings": meanings}
    (folder / "windowing" / "definition.json").write_text(json.dumps(written))
    lines = read_checkpoint(LocalFiles(folder))
    assert [text for title, text in lines if title == "state"] == ["counted: aggregator Count, key word", "seen"]


def test_status_counts_pending_roots_from_the_ack_ledger(tmp_path):
    folder = checkpoint(tmp_path / "c")
    acks = folder / "windowing" / "acks"
    acks.mkdir()
    for batch, begun in enumerate([{1: "a", 2: "b"}, {3: "c"}]):
        open_ones = tuple(RootPartial(root, 77, 1) for root in begun if root != 2)
        record = BatchRecord(batch, begun, open_ones, -1)
        (acks / f"{batch:012d}.batch").write_bytes(frame(b"WNDA", dumps(record.plain())))
    before = contents(folder)
    assert "2 roots, after batch 1" in run("status", folder).output
    assert contents(folder) == before
    (acks / f"{1:012d}.batch").write_bytes(b"damaged")
    assert "cannot be read now" in run("status", folder).output


def test_status_and_ui_name_damaged_metrics_and_those_of_another_version_and_status_shows_the_rest(tmp_path):
    folder = checkpoint(tmp_path / "c")
    whole = dict(read_checkpoint(LocalFiles(folder)))
    file = folder / "windowing" / "metrics.json"
    tens = TaskMetrics("tens", 0, executed=9, slowest=SlowestInput("clicks", 2, 5), late_rows=(("late", "row"),))
    tens.windows = (FiredWindow(5, "(1,)"),)
    numbers = RunMetrics(name="words", at_ms=1, tasks=(tens,), batch=1, ended="")
    leave(numbers, folder)
    assert metrics_in(LocalFiles(folder)) == numbers
    written = file.read_text()
    for damaged, why in {
        written.replace('"executed": 9', '"executed": 8'): "its checksum is not that of its content",
        written.replace('"at_ms": 1', '"at_ms": "noon"'): "its checksum is not that of its content",
        json.dumps({**json.loads(written), "later": 1}): "its checksum is not that of its content",
        json.dumps({"format": 2, "parts": []}): "it has format 2, and this version of windowing reads 1",
        "[]": "it has format None",
        written[:-9]: "is damaged: ",
        "": "is damaged: ",
    }.items():
        file.write_text(damaged)
        done = run("status", folder)
        assert done.exit_code == 1
        said = " ".join(done.output.split())
        assert why in said
        assert "no output depends on it, and the next batch writes it anew" in said
        assert whole["last batch committed"] in said
        assert whole["query"] in said
        assert "no numbers were left here" not in said
        assert why in " ".join(run("ui", folder, "--for", "0.05").output.split())
        told = json.loads(run("status", folder, "--json").output)
        assert (told["metrics"], len(told["damaged"]), told["query"]) == (None, 1, [whole["query"]])


def test_status_names_each_damaged_file_and_shows_the_rest(tmp_path):
    folder = checkpoint(tmp_path / "c")
    for name in ("definition.json", "query.json"):
        (folder / "windowing" / name).write_text("{")
    lines = read_checkpoint(LocalFiles(folder))
    damaged = [text.split(" is damaged")[0] for title, text in lines if title == "damaged"]
    assert damaged == [str(folder / "windowing" / name) for name in ("definition.json", "query.json")]
    assert all("put the file back from a copy" in text for title, text in lines if title == "damaged")
    assert "definition" not in dict(lines)
    assert {"last batch begun", "drained", "in use"} <= dict(lines).keys()
    assert run("status", folder).exit_code == 1


def test_status_tolerates_a_definition_of_another_shape(tmp_path):
    folder = checkpoint(tmp_path / "c")
    for topology in (
        [],
        {"levels": 5},
        {"levels": [5, [[1]], [["a", 5]]], "spouts": [[]]},
        {"stream": [[1]], "states": 5},
    ):
        (folder / "windowing" / "definition.json").write_text(json.dumps({"topology": topology, "bolt": 3}))
        assert run("status", folder).exit_code == 0


def test_states_inside_a_checkpoint_are_refused_by_name(tmp_path):
    done = run("states", checkpoint(tmp_path / "c"))
    assert done.exit_code == 2
    assert "which only Spark reads" in done.output


ELSEWHERE = ["hdfs://nn:8020/ck", "hdfs:/ck", "s3a://key:secret@bucket/ck", "gs://bucket/ck"]


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_states_on_another_file_system_are_refused_by_name(uri):
    done = run("states", uri)
    assert done.exit_code == 2
    assert f"{uri.replace('secret', '***')} is on another file system" in done.output
    assert "on a file system of this machine" in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize(("command", "uri"), [("status", ELSEWHERE[0]), ("ui", ELSEWHERE[2])])
def test_a_checkpoint_on_another_file_system_without_pyspark_is_refused_with_both_remedies(command, uri):
    code = "import sys; sys.modules['pyspark'] = None; from windowing.cli import commands; commands()"
    done = subprocess.run(
        [sys.executable, "-c", code, command, uri], cwd=ROOT, capture_output=True, text=True, check=False
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert "pyspark is not installed; pip install 'windowing[spark]'" in said
    assert f"{uri.replace('secret', '***')} is on another file system, which is read through Spark" in said
    assert "hadoop fs -get" in said
    assert "secret" not in said


@pytest.mark.parametrize("command", [["status"], ["ui"], ["rescale", "old", "--tasks", "2"]])
@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ("hunter2", "number 2 has no value"),
        ("fs.s3a.secret.key=hunter2", "'fs.s3a.secret.key' is no setting of Spark"),
        ("=hunter2", "'' is no setting of Spark"),
    ],
)
def test_an_invalid_spark_setting_is_refused_before_spark_starts_and_its_value_is_not_shown(command, conf, sentence):
    done = run(*command, "hdfs://nn:8020/ck", "--conf", "spark.ui.enabled=false", "--conf", conf)
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert sentence in said
    assert "write KEY=VALUE, for example spark.hadoop.fs.s3a.endpoint.region=eu-central-1" in said
    assert "hunter2" not in said


def test_spark_settings_are_refused_for_a_local_checkpoint(bolts):
    folder, given = checkpoint(bolts.parent / "c"), ("--conf", "spark.hadoop.fs.s3a.secret.key=hunter2")
    for target in (folder, f"file:{folder}"):
        for command in ("status", "ui"):
            done = run(command, target, *given)
            assert (done.exit_code, "is read without Spark; leave out --conf" in done.output) == (2, True)
            assert "hunter2" not in done.output
    done = run("ui", f"{bolts}:topology", *given)
    assert (done.exit_code, "without Spark; leave out --conf" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("command", "master"),
    [
        (["status", "hdfs://nn/ck"], "local[1]"),
        (["ui", "hdfs://nn/ck"], "local[1]"),
        (["rescale", "a", "b", "--tasks", "2"], None),
    ],
)
def test_given_spark_settings_override_those_of_the_command(monkeypatch, command, master):
    """`status` and `ui` use a local master unless another is given; `rescale` uses the master of spark-defaults.conf."""
    import windowing.spark

    started = []

    def session(name, **conf):
        started.append((name, conf))
        raise SessionError("none is started here")

    monkeypatch.setattr(windowing.spark, "session", session)
    for given in ({"spark.hadoop.a.b": "c=d", "spark.e": ""}, {"spark.master": "local[2]"}):
        done = run(*command, *(part for name, value in given.items() for part in ("--conf", f"{name}={value}")))
        assert (done.exit_code, "none is started here" in done.output) == (1, True)
        name, conf = started.pop()
        assert name.startswith("windowing ")
        assert conf.get("spark.master") == given.get("spark.master", master)
        assert given.items() <= conf.items()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("give before=, as it was started, and after=, new; leave out tasks="), "give --before, as it was"),
        (ConfigError("leave out before= and after="), "leave out --before and --after"),
        (ConfigError("partitions= is for topologies"), "--partitions is for topologies"),
        (ConfigError("say whose, tasks={'count': 5}; bolts are count"), "say whose, --tasks count=5; bolts are count"),
        (DefinitionChangedError("checkpoint /a, before=: what keeps windows differs"), "checkpoint /a, --before: what"),
    ],
)
def test_an_error_of_rescale_names_the_options_of_the_command(monkeypatch, error, said):
    import windowing.spark

    def rescale(*_, **__):
        raise error

    monkeypatch.setattr(windowing.spark, "session", lambda name, **conf: None)
    monkeypatch.setattr(windowing.spark, "rescale", rescale)
    done = run("rescale", "a", "b", "--tasks", "5")
    assert done.exit_code == 1
    output = " ".join(done.output.split())
    assert (said in output, error.code in output) == (True, True)
    assert not re.search(r"\b(before|after|partitions)=", output)


def test_a_local_checkpoint_is_read_without_spark(tmp_path):
    code = "import sys; from windowing.cli import commands; commands(standalone_mode=False); print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "status", f"file:{checkpoint(tmp_path / 'c')}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "5f0c" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("scheme", ["file://", "file:"])
def test_a_file_uri_is_read_like_its_path(tmp_path, scheme):
    folder = checkpoint(tmp_path / "c d")
    uri = f"{scheme}{folder}"
    assert run("status", uri).output == run("status", folder).output
    assert run("ui", uri).output == run("ui", folder).output
    written_states(tmp_path / "states.db")
    assert "txid 7, attempt 3" in run("states", f"{scheme}{tmp_path}/states.db").output


def test_states_refuses_a_folder_and_an_unknown_kind_of_server(tmp_path):
    assert "is a folder; give the path of a SqliteStore, which is a file" in run("states", tmp_path).output
    done = run("states", "kafka://broker/topic")
    assert done.exit_code == 2
    assert "kafka://broker/topic is on another file system or server" in done.output
    assert "Redis" not in done.output


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_an_unreachable_server_is_reported_without_the_password(scheme):
    done = run("states", f"{scheme}://me:secret@127.0.0.1:1/0")
    assert done.exit_code == 1
    assert "me:***@127.0.0.1:1/0 cannot be read" in done.output
    assert "secret" not in done.output


def test_a_closed_output_pipe_ends_the_command_without_an_error_message(bolts):
    """`windowing check bolts.py | head -1`"""
    command = [sys.executable, "-m", "windowing", "check", bolts]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, b"")


ENDLESS = """
import sys
from windowing import *

@bolt(output="n int")
def one(tuple):
    return 1

@spout(output="word string")
class Words(Spout):
    def open(self, context, collector):
        self.collector = collector
        print("begun", file=sys.stderr, flush=True)

    def next_tuple(self):
        self.collector.emit(("a",))

def topology():
    builder = TopologyBuilder("t")
    builder.set_spout("words", Words)
    builder.set_bolt("one", one).shuffle_grouping("words")
    return builder.build()
"""
# Not one long sleep: Python sees a signal that comes right before it only after it.
IN_THE_FILE = "import sys, time; print('begun', file=sys.stderr, flush=True)\nwhile True: time.sleep(0.05)"


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "stopped by hand"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
@pytest.mark.parametrize(
    ("command", "text", "end"),
    [
        ("check file.py", IN_THE_FILE, ""),
        ("run file.py:topology", ENDLESS, "; nothing was drained"),
        ("simulate --seeds 1000000 --processes 2", "", ""),
    ],
)
def test_a_stopped_command_ends_with_one_line_and_the_exit_code_of_the_signal(
    tmp_path, command, text, end, number, code, said
):
    (tmp_path / "file.py").write_text(text)
    given = [sys.executable, "-m", "windowing", *command.split()]
    where = {
        "cwd": tmp_path,
        "env": os.environ | {"PYTHONPATH": str(ROOT)},
        "start_new_session": True,
        # A shell's job in the background ignores it.
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    }
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **where) as process:
        if text:
            assert process.stderr.readline() == "begun\n"
        while not text and len(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()) < 2:
            time.sleep(0.5)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal sends it to all processes of a command
        else:
            process.send_signal(number)
        shown, problem = process.communicate(timeout=30)
    assert (process.returncode, shown, problem) == (code, "", f"Error: {said}{end}\n")
    until = time.monotonic() + 10  # since Python 3.14 the workers have a server process, which ends after the command
    while _runs(process.pid):
        assert time.monotonic() < until, "a process of the command runs on"
        time.sleep(0.05)


def _runs(group):
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def test_a_command_that_is_stopped_while_its_options_are_read_says_so_too(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "parse_args", stopped)
    with pytest.raises(SystemExit) as ended:
        commands.main(["simulate"])
    assert (ended.value.code, capsys.readouterr().err) == (130, "Error: stopped by hand\n")


def test_sigterm_ends_a_process_that_user_code_forks_as_without_a_command():
    begun, told = os.pipe()

    def work():
        os.write(told, b".")
        time.sleep(60)

    with loading._sigterm_raised():
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        os.read(begun, 1)
        child.terminate()
        child.join()
    assert child.exitcode == -signal.SIGTERM


def test_sigterm_ends_the_page_of_a_run_as_ctrl_c_does(tmp_path):
    (tmp_path / "file.py").write_text(ENDLESS)
    given = [sys.executable, "-m", "windowing", "ui", f"{tmp_path}/file.py:topology"]
    with subprocess.Popen(given, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "begun\n"
        process.terminate()
        shown, problem = process.communicate(timeout=30)
    assert (process.returncode, shown.splitlines()[1:], problem) == (0, ["ended by SIGTERM"], "")


@pytest.mark.parametrize("command", ["--help", "check", "explain", "simulate --seeds 1"])
def test_output_to_a_full_disk_ends_a_command_with_one_line(bolts, command):
    target = {"check": [bolts], "explain": [f"{bolts}:two"]}.get(command, [])
    given = [sys.executable, "-m", "windowing", *command.split(), *target]
    with open("/dev/full", "w") as full:
        done = subprocess.run(given, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device; make room (a file, or the output of the command)" in done.stderr


def test_a_file_that_does_not_fit_on_the_disk_is_named(bolts, tmp_path, monkeypatch):
    (tmp_path / "rows.json").write_text('[{"word": "a"}]')
    done = run("explain", f"{bolts}:two", tmp_path / "rows.json", "--svg", "/dev/full")
    assert done.exit_code == 1
    assert "No space left on device: '/dev/full'; make room" in done.output
    written = []

    def full_at_the_second(path, content):
        written.append(path)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        loading.write(path, content)

    monkeypatch.setattr(templates, "write", full_at_the_second)
    assert run("new", tmp_path / "job").exit_code == 1
    assert not (tmp_path / "job").exists(), "the next try would be refused"


@pytest.mark.parametrize("cut", ["windowing/definition.json", "metadata", "offsets/0", "offsets/1", "commits/1"])
def test_status_names_a_file_of_a_checkpoint_that_was_cut(tmp_path, cut):
    folder = checkpoint(tmp_path / "c")
    (folder / cut).write_text("")
    done = run("status", folder)
    assert done.exit_code == 1
    assert f"{cut} is damaged" in done.output.replace("\n", "")


@pytest.mark.parametrize(
    "lost",
    ["offsets/0", "offsets/1", "offsets", "commits", "metadata", "windowing/definition.json", "windowing/query.json"],
)
def test_status_names_a_missing_file_of_a_checkpoint(tmp_path, lost):
    folder = checkpoint(tmp_path / "c")
    gone = folder / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    named = {"offsets": "offsets/1", "commits": "commits/0"}.get(lost, lost)
    damage = [text for title, text in read_checkpoint(LocalFiles(folder)) if title == "damaged"]
    assert damage == [f"{folder / named} is missing; put the file back from a copy"]
    assert run("status", folder).exit_code == 1
    (folder / "windowing" / "rescaling.json").write_text('{"format": 1, "from": "file:/old"}')
    assert run("status", folder).exit_code == 0, "a rescale writes it"


def written_states(file):
    """Write a row and a fence in the same way as a state."""
    place = PartitionId("counts", 0, 2)
    backing = SqliteStore(file).open(place)
    fence = Fence(TransactionAttempt(7, 3), StateType.OPAQUE, "json", place, "", 1)
    assert backing.multi_put({b"k": StateRow(7, b"1", None)}, Claim(None, fence)) is None
    backing.close()


def test_states_are_read_beside_a_writer_without_a_change(tmp_path):
    file = tmp_path / "states.db"
    written_states(file)
    before = contents(tmp_path)
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    done = run("states", file)
    writer.execute("ROLLBACK")
    writer.close()
    assert done.exit_code == 0, done.output
    assert "txid 7, attempt 3" in done.output
    (told,) = json.loads(run("states", file, "--json").output)
    assert (told["state"], told["rows"], told["written last by"]) == ("counts", 1, "txid 7, attempt 3")
    assert contents(tmp_path) == before


def test_states_names_a_missing_right(tmp_path, monkeypatch):
    file = tmp_path / "states.db"
    written_states(file)

    def refused(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    monkeypatch.setattr(Path, "open", refused)
    done = run("states", file)
    assert (done.exit_code, "Permission denied" in done.output, "look at the path" in done.output) == (2, True, True)


def test_states_reports_a_damaged_fence_and_refuses_a_file_that_is_not_a_database(tmp_path):
    file = tmp_path / "states.db"
    written_states(file)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE counts_fences SET record = x'00'")
    assert "damaged" in run("states", file).output
    file.write_bytes(b"no database" * 100)
    done = run("states", file)
    assert done.exit_code == 1
    assert "cannot be read" in done.output


# -- doctor, simulate, the script -------------------------------------------------------------------------------------------------


def test_doctor_lists_installed_packages(monkeypatch):
    found = {finding.what: finding for finding in diagnose(query=False)}
    assert found["Python"].good
    assert found["pyspark"].good
    assert 'version "' in found["Java"].found, "not the line about JAVA_TOOL_OPTIONS, which these tests set"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras.keys() - {"topology", "connect", "cli", "examples", "bench", "docs", "dev"}:
        package = re.match(r"[\w-]+", extras[extra][0])[0]
        assert package in found, f"the extra {extra} installs it"
    done = run("doctor", "--no-query")
    assert "pyspark" in done.output


def test_doctor_names_the_remedy_for_a_missing_java(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    found = {finding.what: finding for finding in diagnose(query=True)}
    assert found["Java"].good is False
    assert found["ten rows on Spark"] == Finding(
        "ten rows on Spark", "not tried", False, "mend what is above, then run this again"
    )
    done = run("doctor", "--no-query")
    assert done.exit_code == 1
    assert "install Java 17 or later" in done.output


def test_simulate_runs_the_given_number_of_seeds():
    done = run("simulate", "--seeds", "3")
    assert done.exit_code == 0, done.output
    assert "3 " in done.output


def test_the_console_script_runs_the_command_line(tmp_path):
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["windowing"]
    module, _, function = script.partition(":")
    assert callable(getattr(import_module(module), function))
    code = f"import sys; sys.argv[0] = 'windowing'; from {module} import {function}; {function}()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"new", "check", "explain", "run", "doctor", "status", "states", "replay", "rescale", "simulate"} <= set(
        done.stdout.split()
    )


def test_the_command_line_page_documents_every_command():
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text()
    for name in cli.commands.commands:
        assert f"`windowing {name}" in page, name


@pytest.mark.parametrize(
    "given", [["x"], ["0"], ["count="], ["count=-1"], ["4", "count=2"], ["4", "5"], ["²"], ["9" * 5000], ["n=2", "n=3"]]
)
def test_rescale_refuses_invalid_numbers_of_tasks_before_spark_starts(given):
    found = CliRunner().invoke(
        commands, ["rescale", "old", "new", *(part for each in given for part in ("--tasks", each))]
    )
    assert (found.exit_code, "Invalid value for --tasks" in found.output, "BOLT=NUMBER" in found.output) == (
        2,
        True,
        True,
    )
