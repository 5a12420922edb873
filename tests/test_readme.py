"""The code in README.md and docs/ runs as a doctest or compiles, links have targets, and the picture is that of a real run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tomllib
from datetime import date
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import settings

from windowing import days, millis, seconds, tumbling
from windowing.local import run_local

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
FILE = re.compile(r"\b(?:[a-z_]+/)*[a-z_]+\.py\b")
NAME = re.compile(r"`([A-Za-z_][A-Za-z_.]*)`(?<!\.py`)")
SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_interactive_examples_of_a_page_give_the_shown_output(page):
    text = "\n".join(block for block in blocks(page) if ">>>" in block)
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    told: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=told.append)
    assert failed == 0, "".join(told)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_other_block_of_python_compiles(page):
    for block in blocks(page):
        if ">>>" not in block:
            compile(block, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_has_a_target(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not missing


def test_the_version_has_a_heading_in_the_changelog():
    released = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Not released"
    assert headings[1] == released == version("windowing")


def map_rows() -> list[list[str]]:
    """Return the rows of the table of files in docs/development.md: question, files, names to look for."""
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    lines = text[text.index("| question | file |") : text.index("## The journey of a row")].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if row[0] not in ("question", "---")]


@pytest.mark.parametrize(("question", "files", "look_for"), map_rows())
def test_the_files_and_names_in_the_developer_s_table_exist(question, files, look_for):
    found = [ROOT / "windowing" / name for name in FILE.findall(files + look_for)]
    assert found
    assert not [str(path) for path in found if not path.exists()]
    text = "".join(path.read_text(encoding="utf-8") for path in found)
    names = [name.split(".")[-1] for name in NAME.findall(look_for)]
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"{question} {', '.join(missing)} is not in {files}"


def test_the_files_in_the_developer_s_journeys_exist():
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    named = set(FILE.findall(text[text.index("## The journey of a row") : text.index("## Glossary")]))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (ROOT / "windowing" / name).exists()]


def test_the_developer_page_has_the_number_of_examples_of_each_profile():
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    for profile in ("default", "long"):
        assert f"`{profile}` ({settings.get_profile(profile).max_examples}" in text


def test_the_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_named_on_a_page_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert not [name for name in named if name not in targets]


def test_the_numbers_in_the_readme_are_in_the_benchmark_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"\b\d+\.\d+\b", text[text.index("## Benchmarks") : text.index("## Two commands")])
    measured = re.findall(r"(?<= )[\d.]+(?=,| |$)", (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
    assert len(said) >= 4
    assert not [number for number in said if number not in measured]


@pytest.fixture(scope="module")
def in_one_process() -> dict[str, object]:
    """The variables of the first example of README.md after it has run."""
    (block,) = [block for block in blocks(ROOT / "README.md") if "run_local" in block]
    example = doctest.DocTestParser().get_doctest(block, {}, "README.md", None, 0)
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(example, clear_globs=False).failed == 0
    return example.globs


@pytest.fixture(scope="module")
def picture() -> ElementTree.Element:
    return ElementTree.parse(ROOT / "docs" / "time_line.svg").getroot()


def drawn(picture: ElementTree.Element, kind: str) -> list[tuple[str, int]]:
    """Return word and time of the tuples of a kind, from left to right; "tuple" is all of them."""
    found = [each for each in picture.iter(f"{SVG}g") if {"tuple", kind} <= set(each.get("class", "").split())]
    return sorted(
        ((each.get("data-word", ""), int(each.get("data-at", ""))) for each in found), key=lambda each: each[1]
    )


def text_of(tuples: list[tuple[str, int]]) -> str:
    return " ".join(word for word, _ in tuples)


def test_the_picture_has_the_tuples_of_the_first_example(in_one_process, picture):
    told = [(row["word"], row["at"]) for batch in in_one_process["batches"] for row in batch]
    assert drawn(picture, "tuple") == sorted(told, key=lambda each: each[1])


def test_the_picture_has_the_windows_of_the_first_example(in_one_process, picture):
    windows = [each for each in picture.iter(f"{SVG}g") if "window" in each.get("class", "").split()]
    held = [(int(each.get("data-end", "")), each.get("data-held")) for each in windows]
    assert held == [row[:2] for row in in_one_process["result"]["default"]]
    assert [each.findtext(f"{SVG}text") for each in windows] == [text for _, text in held]


def test_the_highlighted_window_of_the_picture_has_its_new_expired_and_late_tuples(in_one_process, picture):
    (fires,) = [each for each in picture.iter(f"{SVG}g") if "fires" in each.get("class", "").split()]
    (row,) = [row for row in in_one_process["result"]["default"] if row[0] == int(fires.get("data-end", ""))]
    new, held, expired, late = (drawn(picture, kind) for kind in ("new", "held", "expired", "late"))
    assert row == (15_000, text_of(held + new), text_of(new), text_of(expired))
    assert [(word, at, "late") for word, at in late] == in_one_process["result"]["late"]
    assert all(5_000 < at <= 15_000 for _, at in held + new)
    assert all(0 < at <= 5_000 for _, at in expired)
    assert all(at > 15_000 for _, at in drawn(picture, "pending"))


def test_the_picture_has_the_watermarks_of_the_first_example(in_one_process, picture):
    told = " ".join(each.text or "" for each in picture.iter(f"{SVG}text"))
    newest = [max(row["at"] for row in batch) for batch in in_one_process["batches"]]
    for at in newest[1:]:
        assert f"watermark {(at - 2_000) // 1_000} s" in told


# -- the files of a tutorial page ------------------------------------------------------------------------------------------------

FILES = re.compile(r"^```(\w+) title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(page: Path) -> dict[str, str]:
    """Return the files of a page by name, and the shown output of commands by command."""
    return {title: text for _, title, text in FILES.findall(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", [page for page in PAGES if files_of(page)], ids=lambda page: page.stem)
def test_the_files_of_a_page_run_and_print_the_shown_output(page, tmp_path):
    files = files_of(page)
    for name, text in files.items():
        if name.endswith(".py") and " " not in name:
            tmp_path.joinpath(name).write_text(text)
            compile(text, name, "exec")
    commands = [name for name in files if name.startswith("python ")]
    tests = [["-m", "pytest", "-q", "-p", "no:cacheprovider", name] for name in files if name.startswith("test_")]
    for command in [*(name.split()[1:] for name in commands), *tests]:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert files.get(f"python {' '.join(command)}", done.stdout) == done.stdout


def test_an_offset_of_a_slide_less_a_millisecond_gives_the_windows_of_spark_as_the_guide_says():
    @tumbling(seconds(10), offset=millis(9_999), timestamp="at", output="ends long, ats array<long>")
    def shifted(window):
        return window.end_timestamp, [row.at for row in window]

    assert run_local(shifted, [[{"at": at} for at in (9_999, 10_000, 19_999, 20_000)]])["default"] == [
        (9_999, [9_999]),
        (19_999, [10_000, 19_999]),
        (29_999, [20_000]),
    ]

    @tumbling(days(1), offset=millis(86_399_999), timestamp="day", output="days array<date>")
    def daily(window):
        return ([row.day for row in window],)

    dates = [date(2024, 1, 1), date(2024, 1, 1), date(2024, 1, 2)]
    assert run_local(daily, [[{"day": day} for day in dates]])["default"] == [(dates[:2],), (dates[2:],)]
    page = (ROOT / "docs" / "guides" / "from_spark_window.md").read_text(encoding="utf-8")
    assert "@tumbling(days(1), offset=millis(86_399_999))" in page


def test_the_bolt_of_the_guide_from_spark_fires_the_described_windows():
    page = ROOT / "docs" / "guides" / "from_spark_window.md"
    (block,) = [block for block in blocks(page) if "@sliding" in block]
    scope: dict[str, object] = {}
    exec(compile(block, str(page), "exec"), scope)
    hour = 3_600_000
    rows = [("JFK", hour, 4.0), ("LGA", hour, 1.0), ("JFK", hour - 1, 6.0), ("JFK", 20 * hour, 0.0)]
    batches = [
        [dict(zip(("origin", "departure", "delay"), row, strict=True))] for row in [*rows, ("JFK", 2 * hour, 9.0)]
    ]
    result = run_local(scope["delays"], batches)
    assert ("JFK", hour, 2, 5.0) in result["default"]
    assert [late.row.departure for late in result.late] == [2 * hour]
    assert len(result["default"]) == 4 + 4 + 4
