"""`windowing replay`: its output for recorded cases, and its exit codes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from windowing.cli import commands

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "data" / "windows.jsonl.gz"
CASE = {
    "name": "two and two",
    "length": {"count": 2},
    "slide": {"count": 2},
    "event_time": None,
    "stateful": False,
    "clock_start_ms": 7,
    "ops": [["add", 1], ["add", 2]],
    "events": [[1, "activate", [1, 2], [1, 2], [], 7]],
}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, ["replay", *map(str, arguments)])


def written(folder: Path, *cases: object, name: str = "cases.jsonl") -> Path:
    file = folder / name
    text = "\n".join(case if isinstance(case, str) else json.dumps(case) for case in cases)
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


@pytest.mark.parametrize("options", [[], ["--batched"], ["--semantics", "storm"]])
def test_all_recorded_cases_of_storm_are_reproduced(options):
    done = run(RECORDED, *options)
    assert done.exit_code == 0, done.output
    assert "400" in done.output.splitlines()[-2]


def test_lossless_semantics_differ_from_storm_with_exit_code_1():
    done = run(RECORDED, "--semantics", "lossless", "--show", "2")
    assert done.exit_code == 1
    assert "more that differ" in done.output


def test_a_negative_number_of_cases_to_show_is_refused():
    done = run(RECORDED, "--show", "-1")
    assert done.exit_code == 2
    assert "-1 is not in the range x>=0" in done.output


@pytest.mark.parametrize("name", ["cases.jsonl", "cases.jsonl.gz"])
def test_files_may_be_compressed_with_gzip(tmp_path, name):
    done = run(written(tmp_path, CASE, CASE, name=name))
    assert done.exit_code == 0
    assert "Count / Count, processing time" in done.output


def test_the_first_different_event_is_shown(tmp_path):
    wrong = {**CASE, "events": [[1, "activate", [1, 2], [1, 2], [], 8]]}
    done = run(written(tmp_path, wrong))
    assert done.exit_code == 1
    assert "two and two event 0: recorded [1, 'activate', [1, 2], [1, 2], [], 8], now" in done.output


def test_a_missing_event_is_reported(tmp_path):
    done = run(written(tmp_path, {**CASE, "events": []}))
    assert "recorded 0 events, now 1" in done.output


def test_a_case_that_cannot_be_replayed_counts_as_different(tmp_path):
    done = run(written(tmp_path, {**CASE, "ops": [["drain"]]}))
    assert done.exit_code == 1
    assert "cannot be replayed: [CONFIG]" in done.output


def test_a_file_without_cases_has_exit_code_1(tmp_path):
    assert run(written(tmp_path, "")).exit_code == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "cases.jsonl:1 is no JSON"),
        ('{\n"ops": []}', "each line of the file is a case"),
        ("[]", "cases.jsonl:1 is no recorded case: it lacks everything"),
        ('{"ops": []}', "it lacks length, slide"),
        (json.dumps({**CASE, "ops": 7}), "two and two is no recorded case"),
    ],
)
def test_an_invalid_case_is_reported_with_file_and_line(tmp_path, line, sentence):
    done = run(written(tmp_path, line))
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_a_gz_file_that_is_not_compressed_is_reported(tmp_path):
    file = tmp_path / "cases.jsonl.gz"
    file.write_text(json.dumps(CASE))
    done = run(file)
    assert done.exit_code == 2
    assert "cannot be read" in done.output


def test_the_command_runs_as_a_module_and_loads_neither_spark_nor_hypothesis(tmp_path):
    code = (
        "import sys, runpy\n"
        "try:\n    runpy.run_module('windowing', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n"
        "    print(end.code, *sorted({'pyspark', 'hypothesis'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "replay", str(written(tmp_path, CASE))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr


def test_importing_windowing_does_not_load_the_command_line():
    code = "import sys, windowing; print(*{'click', 'rich', 'windowing.cli'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


def test_without_its_packages_the_command_line_names_the_extra():
    code = "import sys; sys.modules['click'] = None; import windowing.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "needs the package click: install windowing with its extra, windowing[cli]" in done.stderr
