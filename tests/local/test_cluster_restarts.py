"""Restarts of a cluster on stored states: which changes are allowed, which are refused; who opens and closes the provider."""

from __future__ import annotations

from typing import Any

import pytest

from windowing import count, seconds, windowed_bolt
from windowing.errors import BoltError, CheckpointError, ConfigError, CorruptStateError, DefinitionChangedError
from windowing.local.checkpoints import DEFINITION
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.stores.states import MemoryStateProvider, SqliteStateProvider
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt
from windowing.topology.plan import Topology

WORDS = [[(word,)] for word in "abacabad"]


@bolt(output="word string, times long")
class Counting:
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        times = self.state.get(tuple["word"], 0) + 1
        self.state.put(tuple["word"], times)
        return tuple["word"], times


@bolt(output="word string")
def same(tuple: Any) -> Any:
    return tuple["word"]


@bolt(output="word string, size long")
def more(tuple: Any) -> Any:
    return tuple["word"], 1


def words(
    tasks: int = 2, name: str = "count", by: str = "fields", upstream: Any = same, also: bool = False, **settings: Any
) -> Topology:
    builder = TopologyBuilder("words").configure(**settings)
    builder.set_spout("words", InputSpout("word string"))
    builder.set_bolt("same", upstream).shuffle_grouping("words")
    declarer = builder.set_bolt(name, Counting, tasks)
    declarer.fields_grouping("same", "word") if by == "fields" else declarer.all_grouping("same")
    if also:
        builder.set_bolt("also", Counting).global_grouping("same")
    return builder.build()


def run(topology: Topology, rows: Any = WORDS, **where: Any) -> Any:
    return run_topology(topology, {topology.spouts[0].id: rows}, clock=VirtualClock(), **where)


# -- allowed and refused changes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{}, {"upstream": more}, {"also": True}, {"max_attempts": 2}])
def test_a_new_field_a_new_bolt_and_other_settings_are_allowed(changed: dict[str, Any], tmp_path: Any) -> None:
    run(words(), state_path=tmp_path / "states")
    again = run(words(**changed), state_path=tmp_path / "states")
    assert max(again["count"]) == ("d", 2)
    assert ("a", 8) in again["count"]
    if "also" in changed:
        assert ("a", 4) in again["also"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"tasks": 3}, "tasks of bolt 'count' was 2, now 3"),
        ({"name": "counts"}, "bolt 'count' has stored states, and now there is none of that name that keeps any"),
        ({"by": "all"}, "the grouping of same:default into bolt 'count' was"),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_change_that_stored_states_depend_on_is_refused_and_loses_nothing(
    kind: str, changed: dict[str, Any], sentence: str, tmp_path: Any
) -> None:
    memory = MemoryStateProvider()
    where = {"states": memory} if kind == "memory" else {"state_path": tmp_path / "states"}
    run(words(), **where)
    with pytest.raises(DefinitionChangedError) as refused:
        run(words(**changed), **where)
    assert f"the stored states of topology 'words': {sentence}" in str(refused.value)
    assert "restore the old definition, or begin with new states" in str(refused.value)
    assert "rescale" not in str(refused.value), "that makes checkpoints of Spark"
    assert ("a", 8) in run(words(), **where)["count"]


def test_removing_a_field_that_a_stateful_bolt_could_read_is_refused(tmp_path: Any) -> None:
    for upstream in (same, more):
        run(words(upstream=upstream), state_path=tmp_path / "states")
    with pytest.raises(
        DefinitionChangedError, match=r"field 'size' \(bigint\) of same:default into bolt 'count' is gone"
    ):
        run(words(), state_path=tmp_path / "states")


def windows(length: int = 3, id: str = "id", upstream: int = 2, pages: bool = False, timeout: int = 30) -> Topology:
    options: dict[str, Any] = {"max_events_in_memory": 1000} if pages else {}
    options |= {"message_id": id, "recovery_timeout": seconds(timeout)}

    @windowed_bolt(length=count(length), slide=count(1), output="n long", **options)
    class Sizes:
        def init_state(self, state: Any) -> None: ...

        def execute(self, window: Any) -> Any:
            return len(window.get())

    @bolt(output="id long, other long")
    def passing(tuple: Any) -> Any:
        return tuple["id"], tuple["other"]

    builder = TopologyBuilder("windows")
    builder.set_spout("source", InputSpout("id long, other long"))
    builder.set_bolt("passing", passing, upstream).fields_grouping("source", "id")
    builder.set_bolt("sizes", Sizes).global_grouping("passing")
    return builder.build()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"length": 5}, 'length of bolt \'sizes\' was {"count": 3}, now {"count": 5}'),
        ({"id": "other"}, 'message_id of bolt \'sizes\' was "id", now "other"'),
        ({"pages": True}, 'kept in of bolt \'sizes\' was "rows", now "pages"'),
        ({"upstream": 3}, 'tasks upstream of bolt \'sizes\' was {"passing": 2}, now {"passing": 3}'),
    ],
)
def test_a_changed_definition_of_a_checkpointed_window_is_refused_with_the_difference(
    changed: dict[str, Any], sentence: str, tmp_path: Any
) -> None:
    rows = [[(n, n) for n in range(1, 5)]]
    run(windows(), rows, state_path=tmp_path / "states", drain=False)
    with pytest.raises(DefinitionChangedError) as refused:
        run(windows(**changed), rows, state_path=tmp_path / "states")
    assert sentence in str(refused.value)
    assert not list(tmp_path.glob("*.pages"))
    run(windows(timeout=10), [[(9, 9)]], state_path=tmp_path / "states")


def test_before_the_first_checkpoint_any_change_is_allowed(tmp_path: Any) -> None:
    with LocalCluster(words(), state_path=tmp_path / "states", clock=VirtualClock()) as cluster:
        cluster.step()
    assert ("a", 4) in run(words(tasks=3), state_path=tmp_path / "states")["count"]


def test_states_with_a_missing_or_damaged_definition_are_refused() -> None:
    states = MemoryStateProvider()
    run(words(), states=states)
    states.save_record(DEFINITION, {"format": 2})
    with pytest.raises(CorruptStateError, match=r"is \{'format': 2\}, which this version cannot read"):
        run(words(), states=states)
    states.save_record(DEFINITION, None)
    with pytest.raises(CheckpointError, match="have checkpoints but no definition of what they are of"):
        run(words(), states=states)


def test_states_of_another_topology_are_refused() -> None:
    states = MemoryStateProvider()
    run(words(), states=states)
    with pytest.raises(DefinitionChangedError, match="they are those of topology 'words'"):
        run(windows(), [[(1, 1)]], states=states)


# -- where the states are stored ---------------------------------------------------------------------------------------


def test_a_state_path_alone_selects_sqlite(tmp_path: Any) -> None:
    path = tmp_path / "words.db"
    assert ("a", 4) in run(words(), state_path=path)["count"]
    assert ("a", 8) in run(words(), state_path=path)["count"]
    with SqliteStateProvider(path, "words") as states:
        assert dict([*states.state("count", 0).items(), *states.state("count", 1).items()])["a"] == 8


def test_without_a_path_states_are_in_memory_and_sqlite_requires_a_path() -> None:
    assert ("a", 4) in run(words())["count"]
    with pytest.raises(
        ConfigError, match="states of 'words' in SQLite need a file that outlives the process, got none"
    ):
        run(words(state_provider="sqlite"))


def test_contradictory_state_options_are_refused_and_create_no_file(tmp_path: Any) -> None:
    path = tmp_path / "states"
    with pytest.raises(ConfigError, match=r"in memory by topology\.state\.provider, yet state_path is"):
        LocalCluster(words(state_provider="memory"), state_path=path)
    with pytest.raises(ConfigError, match=r"both states= and state_path="):
        LocalCluster(words(), states=MemoryStateProvider(), state_path=path)
    builder = TopologyBuilder("plain")
    builder.set_spout("words", InputSpout("word string"))
    builder.set_bolt("same", same).shuffle_grouping("words")
    with pytest.raises(ConfigError, match=r"'plain' keeps nothing in state_path=.*no bolt has init_state"):
        LocalCluster(builder.build(), state_path=path)
    with pytest.raises(ConfigError, match=r"'plain' keeps nothing in states=:"):
        LocalCluster(builder.build(), states=MemoryStateProvider())
    assert not path.exists()


# -- who closes the provider -------------------------------------------------------------------------------------------


def test_a_cluster_that_was_never_stepped_releases_its_file(tmp_path: Any) -> None:
    path = tmp_path / "states"
    with LocalCluster(words(), state_path=path):
        pass
    with SqliteStateProvider(path, "words"):
        pass


def test_an_error_while_tasks_are_created_releases_the_file(tmp_path: Any) -> None:
    @windowed_bolt(length=count(2), slide=count(1), output="n long")
    class NoId:
        def init_state(self, state: Any) -> None: ...

        def execute(self, window: Any) -> Any:
            return 1

    builder = TopologyBuilder("mistake")
    builder.set_spout("source", InputSpout("id long"))
    builder.set_bolt("window", NoId).global_grouping("source")
    for _ in range(2):
        with pytest.raises(ConfigError, match="message_id") as held:
            LocalCluster(builder.build(), state_path=tmp_path / "states")
        # The exception keeps its frames alive, and a connection in them would stay open.
        assert held.value.__traceback__ is not None


def test_every_bolt_is_cleaned_up_and_the_file_released_even_if_cleanup_raises(tmp_path: Any) -> None:
    cleaned: list[str] = []

    def leaving(name: str) -> Any:
        @bolt(output="word string")
        class Leaving:
            def init_state(self, state: Any) -> None: ...

            def execute(self, tuple: Any) -> Any:
                return tuple["word"]

            def cleanup(self) -> None:
                cleaned.append(name)
                raise OSError(f"no way out of {name}")

        return Leaving

    builder = TopologyBuilder("words")
    builder.set_spout("words", InputSpout("word string"))
    builder.set_bolt("first", leaving("first")).global_grouping("words")
    builder.set_bolt("second", leaving("second")).global_grouping("first")
    cluster = LocalCluster(
        builder.build(), batches={"words": WORDS}, clock=VirtualClock(), state_path=tmp_path / "states"
    )
    cluster.run()
    with pytest.raises(BoltError, match="bolt 'first' failed in cleanup: OSError: no way out of first"):
        cluster.close()
    assert cleaned == ["first", "second"]
    cluster.close()
    with SqliteStateProvider(tmp_path / "states", "words") as states:
        assert states.record("checkpoint")["txid"] == 8


def test_after_an_error_the_file_is_released_and_the_first_error_is_raised(tmp_path: Any) -> None:
    @bolt(output="word string")
    class Breaking:
        def init_state(self, state: Any) -> None: ...

        def execute(self, tuple: Any) -> Any:
            raise OSError("broken")

        def cleanup(self) -> None:
            raise OSError("no way out")

    builder = TopologyBuilder("words")
    builder.set_spout("words", InputSpout("word string"))
    builder.set_bolt("breaking", Breaking).global_grouping("words")
    cluster = LocalCluster(
        builder.build(), batches={"words": WORDS}, clock=VirtualClock(), state_path=tmp_path / "states"
    )
    with pytest.raises(BoltError, match="OSError: broken"):
        cluster.run()
    with SqliteStateProvider(tmp_path / "states", "words"):
        pass


def test_a_given_provider_is_left_open(tmp_path: Any) -> None:
    with SqliteStateProvider(tmp_path / "states", "words") as states:
        assert ("a", 4) in run(words(), states=states)["count"]
        assert ("a", 8) in run(words(), states=states)["count"]
        assert dict([*states.state("count", 0).items(), *states.state("count", 1).items()])["a"] == 8


def test_windows_on_disk_continue_in_a_given_provider(tmp_path: Any) -> None:
    with SqliteStateProvider(tmp_path / "states", "windows") as states:
        assert run(windows(pages=True), [[(n, n) for n in (1, 2)]], states=states, drain=False)["sizes"] == [(1,), (2,)]
        with LocalCluster(windows(pages=True), batches={"source": []}, clock=VirtualClock(), states=states) as cluster:
            cluster.step()
            cluster._feed({"source": [(7, 7)]})
            for _ in range(5):
                cluster.step()
            assert cluster.result["sizes"] == [(3,)]  # and no checkpoint holds it
        assert run(windows(pages=True), [[(8, 8)]], states=states, drain=False)["sizes"] == [(3,)]


def test_a_drain_is_a_checkpoint_too() -> None:
    states, rows = MemoryStateProvider(), [(n, n) for n in (1, 2)]
    cluster = LocalCluster(windows(length=5), batches={"source": []}, clock=VirtualClock(), states=states)
    cluster.run_batch({"source": rows})
    cluster.drain()
    assert cluster.result.checkpoints == 2
    # The first cluster is never closed, as after a kill.
    with LocalCluster(windows(length=5), batches={"source": []}, clock=VirtualClock(), states=states) as again:
        again.run_batch({"source": [(3, 3)]})
        assert again.result.late == {("sizes", "closed"): 1}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_changes_without_a_checkpoint_are_invisible_to_the_next_cluster(kind: str, closed: bool, tmp_path: Any) -> None:
    states = MemoryStateProvider() if kind == "memory" else SqliteStateProvider(tmp_path / "states", "words")
    run(words(), states=states)
    cluster = LocalCluster(words(), batches={"words": []}, clock=VirtualClock(), states=states)
    cluster.step()
    cluster._feed({"words": [("a",)]})
    for _ in range(6):
        cluster.step()
    assert cluster.result["count"] == [("a", 5)]
    if closed:
        cluster.close()
        assert dict([*states.state("count", 0).items(), *states.state("count", 1).items()])["a"] == 4
    assert run(words(), [[("a",)]], states=states)["count"] == [("a", 5)]
    states.close()
