"""The manual builds in strict mode, contains every page, and loads nothing from a network."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.test_exports import PUBLIC

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"<(?:script|img|iframe|source|embed|object)\b[^>]*\b(?:src|data)=\"([^\"]+)\"|<link\b[^>]*\bhref=\"([^\"]+)\""
)
IN_STYLES = re.compile(r"@import\s+[\"']?([^\"';]+)|url\(\s*[\"']?([^\"')]+)")
PAGES = sorted(page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual, built once for all processes of the tests."""
    base = tmp_path_factory.getbasetemp()
    home = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = home / "manual"
    with (home / "manual.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(home / "built")]
            built = subprocess.run(
                build,
                cwd=ROOT,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert built.returncode == 0, built.stdout + built.stderr
            (home / "built").rename(folder)
    return folder


def is_elsewhere(address: str) -> bool:
    return address.startswith(("http:", "https:", "//"))


def test_the_manual_loads_nothing_from_a_network(site: Path) -> None:
    loaded = [
        (path.name, address)
        for pattern, ending in ((LOADED, "html"), (IN_STYLES, "css"))
        for path in site.rglob(f"*.{ending}")
        for found in pattern.findall(path.read_text(encoding="utf-8"))
        for address in found
    ]
    assert len(loaded) > 100
    assert not [each for each in loaded if is_elsewhere(each[1])]
    assert not [path for path in site.rglob("*.html") if 'class="mermaid"' in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_navigation_leads_to_every_page(site: Path, page: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    assert f'href="{page.with_suffix(".html").as_posix()}"' in first or page.name == "index.md"


def test_the_index_of_decisions_has_every_note_under_its_number() -> None:
    notes = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    rows = re.findall(
        r"^\| \[(\d+)\]\((.*?)\) \| .+\. \| \d{4}-\d\d-\d\d \|$",
        (notes[0].parent / "index.md").read_text(),
        re.MULTILINE,
    )
    assert rows == [(str(int(note.name[:4])), note.name) for note in notes]
    assert not [note for note in notes if not note.read_text().startswith(f"# {int(note.name[:4])}. ")]


def test_the_api_reference_has_every_exported_name(site: Path) -> None:
    for door in PUBLIC:
        module = import_module(door)
        name = module.__name__.rpartition(".")[2]
        text = (site / "reference" / "api" / f"{name}.html").read_text(encoding="utf-8")
        missing = [each for each in module.__all__ if f'id="{module.__name__}.{each}' not in text]
        assert not missing, f"{name}: {', '.join(missing)}"
        assert "StormNames" not in text
