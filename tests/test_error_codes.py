"""Every error class has its own code, and a row in docs/reference/errors.md."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from windowing.errors import WindowingError, describe_error, printable, quote

ROOT = Path(__file__).parents[1]


class Class(NamedTuple):
    """A class in windowing/: the codes its body sets, texts in capitals, and the names of its bases."""

    file: str
    name: str
    codes: tuple[str, ...]
    bases: frozenset[str]


@cache
def classes() -> tuple[Class, ...]:
    return tuple(
        Class(
            str(source),
            node.name,
            tuple(code for code in map(code_of, node.body) if code is not None),
            frozenset(base.id for base in node.bases if isinstance(base, ast.Name)),
        )
        for source in sorted((ROOT / "windowing").rglob("*.py"))
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )


def code_of(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        value = statement.value.value
        if isinstance(target, ast.Name) and target.id == "code" and isinstance(value, str) and value.isupper():
            return value
    return None


def test_every_code_belongs_to_one_class_and_is_in_the_table_of_errors() -> None:
    found = sorted((code, each.name) for each in classes() for code in each.codes)
    assert len({code for code, _ in found}) == len(found) > 15
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `([A-Z_]+)` \| `(\w+)`", page, re.MULTILINE)) == found


def test_an_error_that_a_worker_of_spark_may_raise_is_in_the_module_of_errors() -> None:
    """spark/failures.py sends the errors of that module; a worker builds no topology."""
    elsewhere = {each.name for each in classes() if each.codes and not each.file.endswith("windowing/errors.py")}
    assert elsewhere == {"TopologyError"}


def test_the_recovery_page_covers_every_code() -> None:
    page = (ROOT / "docs" / "operate" / "recover.md").read_text(encoding="utf-8")
    said = {
        code for row in re.findall(r"^\| (`[A-Z_`, ]+`) \|", page, re.MULTILINE) for code in re.findall(r"[A-Z_]+", row)
    }
    assert said == {code for each in classes() for code in each.codes}


def test_every_error_class_has_its_own_code() -> None:
    coded = {each.name for each in classes() if each.codes}
    for each in classes():
        if each.bases & coded and each.name.endswith("Error"):
            assert each.codes or each.name == "RowError", f"{each.file}: {each.name}"


def test_data_in_messages_is_escaped_and_truncated() -> None:
    assert str(WindowingError("no")) == "[WINDOWING] no"
    assert (quote("a\nb\u202e"), len(quote("x" * 999))) == ("'a\\nb\\u202e'", 200)
    assert (printable("a\nb\x1b[0m"), len(printable("x" * 999))) == ("a\\nb\\x1b[0m", 500)
    assert describe_error(ValueError("a\nb")) == "ValueError: a\\nb"


def test_a_value_whose_repr_has_several_lines_is_quoted_on_one() -> None:
    class Frame:
        def __repr__(self) -> str:
            return "  n\n0 1"

    assert quote([Frame()]) == "[  n 0 1]"
    assert quote("a\nb  c") == "'a\\nb  c'"
