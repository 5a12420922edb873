"""The memory and SQLite stores pass the contract of stores (store_contract.py)."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stores.store_contract import *  # noqa: F403
from windowing import stores, trident
from windowing.errors import ConfigError
from windowing.optional import _EXTRAS
from windowing.stores import MemoryStore, SqliteRecordStore, SqliteStore, Store, map_state, snapshot_state, store_of
from windowing.stores.factory import REMOTE
from windowing.trident import TypedJson


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "new" / "state.db")


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("memory:", "MemoryStore"),
        ("counts.db", "SqliteStore(path=PosixPath('/here/counts.db')"),
        ("sqlite:counts.db", "SqliteStore(path=PosixPath('/here/counts.db')"),
        ("sqlite:/data/counts.db", "SqliteStore(path=PosixPath('/data/counts.db')"),
        ("postgresql://me:secret@h/db", "PostgresStore('postgresql://me:***@h/db')"),
        ("host=h dbname=d password=secret", "PostgresStore('host=h dbname=d password=***')"),
        (" password = 'a secret' user=me", "PostgresStore(' password = *** user=me')"),
        ("sqlite:user=me.db", "SqliteStore(path=PosixPath('/here/user=me.db')"),
        ("redis://:secret@h:1/0", "RedisStore('redis://:***@h:1/0')"),
        ("rediss://h", "RedisStore('rediss://h')"),
    ],
)
def test_store_of_returns_the_store_for_an_address(
    address: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wanted in repr(store_of(address)).replace(str(tmp_path), "/here")


@pytest.mark.parametrize("address", ["", "sqlite:", "mysql://me:secret@h/db", "//x", "sqlite://h/x"])
def test_an_unknown_store_address_is_refused_and_its_password_not_shown(address: str) -> None:
    with pytest.raises(ConfigError, match="there is no store at") as caught:
        store_of(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgres:/x/y", "no store at 'postgres:/x/y'; give"),
        ("postgresql:me:secret@h/db", "no store at postgresql:... (the rest may hold a password); give"),
        ("redis:6379/0", "no store at 'redis:6379/0'; give"),
        ("memory:counts", "no store at 'memory:counts'; give"),
        (
            "mysql:/me:secret@h/db",
            "no store at mysql:... (the rest may hold a password): 'mysql' is no scheme of a store",
        ),
        ("file:/data/counts.db", "'file' is no scheme of a store; give the path of a SQLite file (sqlite:PATH if"),
        ("counts:v2.db", "'counts' is no scheme of a store; give the path of a SQLite file (sqlite:PATH if"),
    ],
)
def test_an_address_with_an_unknown_scheme_or_a_malformed_one_makes_no_sqlite_file(address: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        store_of(address)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("address", ["sqlite:counts:v2.db", "./counts:v2.db"])
def test_a_file_whose_name_has_a_colon_has_a_scheme_or_a_folder_before_it(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert store_of(address) == SqliteStore("counts:v2.db")


@pytest.mark.parametrize(("address", "module"), [("postgresql://h/db", "postgres"), ("redis://h", "redis")])
def test_a_missing_extra_is_named(address: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"windowing.stores.{module}", raising=False)
    monkeypatch.setitem(sys.modules, {"postgres": "psycopg", "redis": "redis"}[module], None)
    with pytest.raises(ConfigError, match=rf"install windowing\[{module}\]"):
        store_of(address)


@pytest.mark.parametrize("address", ["counts.db", "postgresql://me:secret@h/db", "redis://:secret@h:1/0"])
def test_a_state_factory_can_be_pickled(address: str) -> None:
    factory = map_state(store_of(address), "counts", cache=10)
    copy = pickle.loads(pickle.dumps(factory))
    assert (copy.store, copy.name, copy.kind, copy.cache) == (factory.store, "counts", factory.kind, 10)


@pytest.mark.parametrize("name", ["a" * 51, "counts_fences", "COUNTS_FENCES", "two words", "", 7])
def test_a_name_of_a_state_that_cannot_be_one_of_its_tables_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a state's name"):
        map_state(MemoryStore(), name)


@pytest.mark.parametrize("name", ["my-counts", "x" * 55, "x" * 99])
def test_a_wrong_name_of_a_state_is_told_one_limit(name: str) -> None:
    with pytest.raises(ConfigError, match=r"at most 50 long, got"):
        map_state(MemoryStore(), name)


def test_a_name_of_a_state_has_up_to_50_characters() -> None:
    assert map_state(MemoryStore(), "a" * 50).name == "a" * 50


@pytest.mark.parametrize("cache", [-1, "5", 1.5, True, None])
def test_the_number_of_cached_rows_is_a_whole_number(cache: Any) -> None:
    with pytest.raises(ConfigError, match=r"the state counts was to cache .* rows; give a whole number, 0 or more"):
        map_state(MemoryStore(), "counts", cache=cache)


@pytest.mark.parametrize(
    ("codec", "way_out"),
    [
        (object(), "let it have a text as name, encode, decode"),
        ("json", "let it have a text as name, decode"),
        (SimpleNamespace(name=7, encode=print, decode=print), "let it have a text as name"),
        (SimpleNamespace(name="mine", encode=print), "let it have decode"),
        (TypedJson, "give an object of this class"),
    ],
)
def test_what_is_no_codec_is_refused_where_it_is_given(codec: Any, way_out: str) -> None:
    for declare in (map_state, snapshot_state):
        with pytest.raises(
            ConfigError, match=r"the codec of the state counts is an object with name, encode and decode, got"
        ) as raised:
            declare(MemoryStore(), "counts", codec=codec)
        assert str(raised.value).endswith(f"; {way_out}, or give TypedJson()")


@pytest.mark.parametrize(
    ("lacks", "wanted"),
    [
        ({"encode": lambda: b""}, r"encode takes \(\): .*; write a function of \(value\)"),
        ({"decode": json.loads}, r"decode takes .*; write a function of \(blob, what\)"),
    ],
)
def test_a_codec_whose_methods_do_not_take_their_arguments_is_refused_where_it_is_given(
    lacks: Any, wanted: str
) -> None:
    whole = {"name": "mine", "encode": lambda value: b"", "decode": lambda blob, what: blob}
    map_state(MemoryStore(), "counts", codec=SimpleNamespace(**whole))
    with pytest.raises(ConfigError, match=f"the codec of the state counts: {wanted}"):
        map_state(MemoryStore(), "counts", codec=SimpleNamespace(**whole | lacks))


@pytest.mark.parametrize("timeout_s", [-1, "5", None, True, float("nan"), float("inf"), 1_000_001])
def test_a_time_to_wait_for_a_lock_that_is_none_is_refused_where_it_is_given(timeout_s: Any, tmp_path: Path) -> None:
    for declare in (SqliteStore, SqliteRecordStore):
        wanted = r"the timeout of .* is a number of seconds, 0 or more and at most 1,000,000, got"
        with pytest.raises(ConfigError, match=wanted) as raised:
            declare(tmp_path / "new" / "counts.db", timeout_s)
        assert str(raised.value).endswith("; give 30.0, say")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("timeout_s", [0, 1_000_000])
def test_a_store_in_sqlite_may_wait_for_no_lock_and_for_days(timeout_s: int, tmp_path: Path) -> None:
    map_state(SqliteStore(tmp_path / "counts.db", timeout_s), "counts").make_state(0, 1).close()
    SqliteRecordStore(tmp_path / "records.db", timeout_s).close()


def test_importing_the_stores_loads_no_client_of_a_server() -> None:
    code = "import sys, windowing.stores; print(*{'psycopg', 'redis', 'pyspark'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_store_passes_the_contract() -> None:
    named = {name for name in stores.__all__ if callable(getattr(getattr(stores, name), "open", None))} - {"Store"}
    files = [*Path(__file__).parent.glob("*.py"), *(Path(__file__).parents[1] / "services").glob("*.py")]
    texts = [text for file in files if "store_contract import *" in (text := file.read_text(encoding="utf-8"))]
    passing = {name for name in named for text in texts if re.search(rf"import .*\b{name}\b", text)}
    assert {"MemoryStore", "SqliteStore"} < named == passing


def test_every_store_on_a_server_has_an_extra_and_can_be_listed_by_the_command() -> None:
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for module, name in set(REMOTE.values()):
        text = (root / "windowing" / "stores" / f"{module}.py").read_text(encoding="utf-8")
        assert f"\nclass {name}" in text
        assert "\ndef stored_states(url: str)" in text, "for `windowing states`"
        assert module in extras
        assert module in _EXTRAS.values(), "which names the extra where its package is missing"


def test_the_memory_store_from_which_a_user_s_begins_needs_only_public_names() -> None:
    text = (Path(stores.__file__).parent / "memory.py").read_text(encoding="utf-8")
    imported = re.findall(r"^from windowing\.\S+ import (.*)$", text, re.MULTILINE)
    assert {name for names in imported for name in names.split(", ")} <= set(trident.__all__)
