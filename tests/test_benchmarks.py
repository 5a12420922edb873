"""The benchmark suite: all contenders get the same events, wrong results are not timed, and results round-trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import frame, growth, memory, page, records, suites, targets
from benchmarks.core import peers, suite
from benchmarks.core.shapes import SHAPES
from benchmarks.events import START_MS, events
from benchmarks.frame import Contender, Disagreement, Measured, Plan, measure, ratio, timed
from benchmarks.records import Comparison, Figure, Missing, Run
from benchmarks.spark import native, ours, public, sql, stage, trident, windows
from benchmarks.spark.topologies import QUERIES
from benchmarks.storm import suite as storm
from windowing import count
from windowing.local import VirtualClock, run_topology

MACHINE = {
    "system": "Linux x", "cores": 2, "memory_gib": 1, "load_before": 0.0, "load_after": 0.1, "python": "CPython", "java": None,
    "commit": "abc",
    "packages": {"windowing": "0"}, "scale": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _loud(monkeypatch):
    """Collect no garbage before a round: with the objects of all tests a collection takes longer than the round."""
    monkeypatch.setattr(frame, "quiet", nullcontext)
    monkeypatch.setattr(growth, "quiet", nullcontext)


def plan(*contenders: Contender, **options: object) -> Plan:
    return replace(Plan("sums", "a sum", contenders, lambda size: list(range(size)), 100), **options)  # type: ignore[arg-type]


def run_of(*comparisons: Comparison, suite: str = "core") -> Run:
    return Run(suite, "2026-01-01T00:00:00+00:00", 1.5, MACHINE, comparisons)


# -- events -----------------------------------------------------------------------------------------------------------


def test_the_same_arguments_give_the_same_events_in_every_process():
    load = events(1_000, disorder_ms=20)
    events.cache_clear()
    again = events(1_000, disorder_ms=20)
    assert (load.keys, load.stamps, load.values) == (again.keys, again.stamps, again.values)
    assert load.stamps[:5] == [START_MS + at for at in (1, 3, 5, 4, 14)]  # pinned: the events of a seed never change
    assert load.values[:3] == [129.0, 892.0, 561.0]


def test_batches_and_rows_are_the_same_events():
    load = events(25_000)
    assert [len(stamps) for _, stamps, _ in load.batches] == [10_000, 10_000, 5_000]
    assert [row for batch in load.batches for row in zip(*batch, strict=True)] == load.rows


def test_events_are_out_of_order_by_at_most_the_given_disorder():
    newest = 0
    for stamp in events(5_000, disorder_ms=50).stamps:
        newest = max(newest, stamp)
        assert newest - stamp <= 50
    assert sorted(events(5_000, disorder_ms=50).stamps) == events(5_000).stamps


# -- the frame --------------------------------------------------------------------------------------------------------


def test_all_contenders_of_a_size_get_the_same_workload_object():
    seen: list[object] = []

    def look(load: list[int]) -> int:
        seen.append(load)
        return len(load)

    measure(plan(Contender("a", look), Contender("b", look), Contender("half", look, share=0.5, compared=False)), 2)
    assert {len(load) for load in seen} == {100, 50}
    assert len({id(load) for load in seen if len(load) == 100}) == 1


def test_a_contender_with_another_result_is_not_timed():
    with pytest.raises(Disagreement, match="sums: wrong found 4951, right found 4950"):
        measure(plan(Contender("right", sum), Contender("wrong", lambda load: sum(load) + 1)), 1)


def test_the_exact_check_detects_a_difference_that_the_summary_misses():
    blind = Contender("blind", len, check=lambda load: [*reversed(load)])
    measure(plan(Contender("right", len, check=list), blind), 1)
    with pytest.raises(Disagreement, match="blind found"):
        measure(plan(Contender("right", len, check=list), blind, checked=10), 1)


def test_a_contender_with_a_share_is_compared_with_the_base_over_that_share():
    found = measure(plan(Contender("right", sum), Contender("slow", sum, share=0.1)), 1)
    assert [figure.size for figure in found.figures] == [100, 10]
    with pytest.raises(Disagreement):
        measure(plan(Contender("right", sum), Contender("slow", lambda load: 4950, share=0.1)), 1)


def test_contenders_rotate_and_each_is_first_equally_often():
    order: list[str] = []
    names = "abc"
    contenders = [Contender(name, lambda load, name=name: order.append(name)) for name in names]
    measure(plan(*contenders), 3)
    assert "".join(order[-9:]) == "abcbcacab"


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds():
    assert ratio([2.0, 20.0, 9.0], [1.0, 10.0, 3.0]) == 2.0  # a round in which all contenders were slow changes nothing
    assert ratio([1.0], [0.0]) is None


def test_a_contender_that_returns_measured_is_not_timed_by_the_frame():
    assert timed(lambda load: Measured("r", 7.5, {"MB": 1}), None, 10) == Measured("r", 7.5, {"MB": 1})
    assert timed(lambda load: "r", None, 10).result == "r"


# -- the shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_library_and_the_code_by_hand_find_the_same_windows(shape, monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda package: None)
    mine = [each for each in suite.plans(0.01) if each.about == shape.about]
    assert len(mine) == 2
    for each in mine:
        found = measure(
            replace(each, size=4_000, checked=21_000 if shape.totals else 3_000 if shape.slide == count(1) else 12_000),
            1,
        )
        columns = ["windowing, columnar"] if "batches" in each.name else []
        assert [figure.contender for figure in found.figures] == ["by hand", "windowing", *columns]


def test_peers_that_are_not_installed_are_listed_with_the_reason(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda package: None)
    absent = {(each.name, m.contender): m.reason for each in suite.plans(0.01) for m in each.missing}
    assert absent["1, batches of 10,000", "bytewax"] == 'not installed; pip install "windowing[bench]"'
    assert absent["3, batches of 10,000", "bytewax"] == "has no count windows"
    assert {name for _, name in absent} == {"bytewax", "streamz", "river"}


@pytest.mark.parametrize("each", [*growth.plans(0.001), *memory.plans(0.001)], ids=lambda each: each.name)
def test_growth_and_memory_plans_give_positive_figures(each):
    found = measure(replace(each, size=min(each.size, 2_000)), 1)
    assert all(figure.median > 0 for figure in found.figures)
    assert not each.axis or [figure.x for figure in found.figures] == sorted(figure.x for figure in found.figures)


# -- public benchmarks, Storm, Spark ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", [each for queries in QUERIES.values() for each in queries], ids=lambda query: query.name
)
def test_the_topologies_of_public_benchmarks_have_the_results_of_plain_python(query, tmp_path, monkeypatch):
    monkeypatch.setattr(public, "scratch", lambda: tmp_path)
    rows = public.tables.__wrapped__(query.name, 2_000, 2, True).rows_by_spout(query)
    batches = {spout: [found[at : at + 500] for at in range(0, len(found), 500)] for spout, found in rows.items()}
    result = run_topology(query.topology(), batches, clock=VirtualClock())
    assert sorted(map(tuple, result[query.sink])) == query.plain(rows)
    assert len(query.plain(rows)) > 1


def test_storm_is_listed_as_missing_if_it_cannot_be_built(monkeypatch):
    def not_here() -> list[str]:
        raise storm.NotBuilt("there is no Maven on this machine")

    monkeypatch.setattr(storm, "build", not_here)
    for each in storm.plans(0.01):
        found = measure(replace(each, warmups=0), 1)
        assert [figure.contender for figure in found.figures] == ["windowing"]
        assert found.missing == (Missing("Storm", "there is no Maven on this machine"),)


def test_digest_covers_every_element_and_wraps_like_java():
    assert storm.digest([1, 2.0, 3]) == 1 * 31 * 31 + 2 * 31 + 3
    assert storm.digest([2**62] * 2) == 0
    assert storm.digest([2**62, 0]) == -(2**62)


@pytest.mark.crash(minutes=1.5)
def test_windowed_and_native_spark_queries_find_the_same_windows(spark, tmp_path, monkeypatch):
    for module in (stage, native, public, sql):
        monkeypatch.setattr(module, "spark", lambda: spark)
    for module in (stage, public):
        monkeypatch.setattr(module, "scratch", lambda: tmp_path)
    for cached in (stage.staged, stage.checked_input, public.tables):
        cached.cache_clear()
    plans = {each.name: each for each in [*windows.plans(), *public.yahoo()]}
    for name in ("sliding 10 s/1 s, 1M", "function over rows, 10 s/1 s, 100k", "Yahoo"):
        each = plans[name]
        frame.check(each, {each.checked: each.workload(each.checked)})
    load = stage.staged(2_000, 2)
    found = ours.timed(ours.totals(1_000, 1_000))(load)
    assert found.value > 0
    assert found.notes["CPU us per row"] > 0


# -- results ----------------------------------------------------------------------------------------------------------


def sums(*values: Sequence[float], name: str = "1, batches of 10,000", unit: str = "ns per event") -> Comparison:
    figures = [
        Figure(who, tuple(rounds), ratio(rounds, values[0]), 100, None, {})
        for who, rounds in zip(("by hand", "windowing", "bytewax"), values, strict=False)
    ]
    return Comparison(name, "sums", unit, "by hand", "CPU", tuple(figures), (Missing("streamz", "is out"),))


def test_results_round_trip_through_their_file(tmp_path):
    run = run_of(sums([1.0, 2.0], [3.5, 4.5]), replace(sums([1.0], name="curve"), axis="keys"))
    saved = records.save(run, tmp_path)
    assert records.load(tmp_path) == {"core": run}
    assert Run.of(json.loads(saved.read_text())) == run


def test_the_page_has_every_figure_and_every_missing_contender(tmp_path):
    records.save(run_of(sums([100.0] * 3, [130.0, 140.0, 150.0])), tmp_path / "results")
    written = page.write(tmp_path / "results", tmp_path).read_text()
    assert "| by hand | 100 | 3: 100-100 | 1.00 | 100 |" in written
    assert "| windowing | 140 | 3: 130-150 | 1.40 | 100 |" in written
    assert "| streamz | is out |" in written
    assert "| at most 1.5 times | shape 1: 1.4 | not measured: shape 2, shape 3, shape 4 |" in written
    assert (tmp_path / "benchmarks" / "core.svg").exists()


def test_comparisons_of_one_unit_are_in_one_table():
    two = run_of(sums([1.0], [2.0]), sums([4.0], [2.0], name="2, batches of 10,000"))
    written = page.text({"core": two}, {})
    assert "| 1, batches of 10,000 | sums | 1 | 2 (2.00) |" in written
    assert "| 2, batches of 10,000 | sums | 4 | 2 (0.50) |" in written
    assert "streamz is out: not in 1, batches of 10,000; 2, batches of 10,000." in written


def test_charts_are_byte_for_byte_reproducible(tmp_path):
    records.save(run_of(sums([1.0], [2.0])), tmp_path)
    drawn = [page.write(tmp_path, tmp_path / name).parent / "benchmarks" / "core.svg" for name in "ab"]
    assert drawn[0].read_bytes() == drawn[1].read_bytes()


def test_a_target_is_met_missed_by_a_factor_or_not_measured():
    target = targets.Target("t", "w", lambda runs: {"a": 1.0, "b": 3.0, "c": None}, 1.5)
    assert target.judge({}) == ("a: 1, b: 3", "missed: b by a factor of 2; not measured: c")
    assert replace(target, limits={"a": 0.5, "b": 2, "c": 1}, at_most=False).judge({})[1] == "not measured: c"
    assert all(verdict.startswith("not measured") for *_, verdict in targets.judged({}))
    fast = {"core": run_of(*(sums([10.0], [14.0], name=f"{s}, batches of 10,000") for s in "1234"))}
    assert targets.judged(fast)[0][2:] == ("shape 1: 1.4, shape 2: 1.4, shape 3: 1.4, shape 4: 1.4", "met")


def test_every_target_uses_comparisons_of_the_suites():
    made = {each.name for each in [*suite.plans(), *growth.plans(), *memory.plans()]}
    asked = {
        label for target in targets.TARGETS for label in target.numbers({}) if label.startswith(("trigger", "length"))
    }
    assert asked <= made
    assert {f"{shape}, {way}" for shape in "1234" for way in ("batches of 10,000", "one at a time")} <= made


def test_the_command_refuses_an_unknown_suite_and_lists_the_suites(tmp_path):
    with pytest.raises(SystemExit, match=r"there is no suite cor; there are core, growth, memory"):
        command.main(["cor"])


def test_the_command_runs_a_suite_and_stores_its_results(tmp_path, capsys):
    command.main(["simulator", "--scale", "0.01", "--rounds", "1", "--results", str(tmp_path)])
    assert "schedules [schedules per CPU-second]" in capsys.readouterr().out
    assert records.load(tmp_path)["simulator"].machine["scale"] == 0.01


def test_the_command_with_match_runs_only_matching_comparisons(tmp_path):
    command.main(["core", "--match", "1,000/1, one", "--scale", "0.03", "--rounds", "1", "--results", str(tmp_path)])
    (found,) = records.load(tmp_path)["core"].comparisons
    assert found.name == "1,000/1, one at a time"


def test_every_suite_has_an_existing_module():
    for each in suites.SUITES.values():
        path = Path(suites.__file__).parent.parent / each.module.replace(".", "/")
        assert path.with_suffix(".py").exists(), each.name


def test_the_hand_written_upsert_adds_each_batch_once(tmp_path):
    with closing(trident.InSqlite(str(tmp_path / "totals.db"), "words")) as table:
        table.add(0, [("to", 2), ("be", 1)])
        table.add(1, [("to", 1)])
        table.add(1, [("to", 1), ("or", 1)])  # the batch is replayed
        table.add(0, [("to", 2)])
        assert table.totals() == {"to": 3, "be": 1}
