"""The pictures of docs/concepts/ are up to date: they equal the pictures of current runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools" / "pictures.py")
assert _spec is not None
assert _spec.loader is not None
pictures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pictures)


@pytest.mark.parametrize("name", pictures.PAGES)
def test_a_picture_equals_that_of_a_current_run(name):
    found = (ROOT / "docs" / "concepts" / name).read_text(encoding="utf-8")
    assert found == pictures.drawn(name), "run python tools/pictures.py"


@pytest.mark.parametrize("name", pictures.PAGES)
def test_each_picture_is_shown_on_its_page(name):
    page = pictures.PAGES[name]
    assert f"]({name})" in (ROOT / "docs" / "concepts" / page).read_text(encoding="utf-8")
