"""The code in README.md and docs/ runs: the prompts as doctests, the Spark example as far as it goes without Spark."""

from __future__ import annotations

import ast
import doctest
import re
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import settings

from windowing.local import run_local

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
FILE = re.compile(r"\b(?:[a-z_]+/)*[a-z_]+\.py\b")
NAME = re.compile(r"`([A-Za-z_][A-Za-z_.]*)`(?<!\.py`)")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def spark_example() -> str:
    return next(block for block in blocks(ROOT / "README.md") if "windowing.spark" in block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_written_for_the_prompt_answers_as_written(page):
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
def test_every_link_leads_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not missing


def map_rows() -> list[list[str]]:
    """Return the rows of the map in docs/development.md: question, files, what to look for there."""
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    lines = text[text.index("| question | file |") : text.index("## The journey of a row")].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


@pytest.mark.parametrize(("question", "files", "look_for"), map_rows())
def test_the_map_for_developers_names_files_that_are_there_and_what_is_in_them(question, files, look_for):
    found = [ROOT / "windowing" / name for name in FILE.findall(files + look_for)]
    assert found
    assert not [str(path) for path in found if not path.exists()]
    text = "".join(path.read_text(encoding="utf-8") for path in found)
    names = [name.split(".")[-1] for name in NAME.findall(look_for)]
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"{question} {', '.join(missing)} is not in {files}"


def test_the_journeys_for_developers_name_files_that_are_there():
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    named = set(FILE.findall(text[text.index("## The journey of a row") : text.index("## Glossary")]))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (ROOT / "windowing" / name).exists()]


def test_the_page_for_developers_says_how_many_examples_a_property_test_has():
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    for profile in ("default", "long"):
        assert f"`{profile}` ({settings.get_profile(profile).max_examples}" in text


def test_the_readme_can_be_tried_at_the_prompt():
    assert sum(">>>" in block for block in blocks(ROOT / "README.md")) >= 2


def test_the_spark_example_is_short():
    assert len([line for line in spark_example().splitlines() if line.strip()]) <= 20


def test_the_bolt_of_the_spark_example_runs_without_spark():
    tree = ast.parse(spark_example())
    pure = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ImportFrom) and node.module == "windowing")
    ]
    scope: dict[str, object] = {}
    exec(compile(ast.Module(pure, []), "README.md", "exec"), scope)
    flight = namedtuple("flight", "origin departure delay id")
    hour = 3_600_000
    batches = [
        [flight("JFK", hour, 4.0, 1), flight("LGA", hour, 1.0, 2), flight("JFK", hour - 1, 6.0, 3)],
        [flight("JFK", 20 * hour, 0.0, 4)],
        [flight("JFK", 2 * hour, 9.0, 5)],
    ]
    result = run_local(scope["delays"], batches)
    assert ("JFK", hour, 2, 5.0) in result["default"]
    assert [late.row.id for late in result.late] == [5]
    assert len(result["default"]) == 4 + 4 + 4
