"""Every mistake of a Trident topology is found by `build`, all of them together, one sentence for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import windowing.trident
from windowing import InputSpout, OnError, Semantics
from windowing.errors import BoltError, ConfigError, by_name
from windowing.local import run_trident
from windowing.optional import _ELSEWHERE
from windowing.stores.factory import map_state, snapshot_state
from windowing.stores.memory import MemoryStore
from windowing.topology.plan import TopologyError
from windowing.trident import builtins as b
from windowing.trident.kinds import Guarantee, SpoutKind, StateType
from windowing.trident.operations import JoinType
from windowing.trident.planner import TRIDENT_RULES
from windowing.trident.spouts import IBatchSpout
from windowing.trident.state_operations import StateSpec
from windowing.trident.states import QueryFunction, StateUpdater
from windowing.trident.streams import Stream, TridentTopology, WindowOutput
from windowing.trident.subtopology import TridentRun
from windowing.windows.measures import count, seconds


class Given:
    def __init__(self, output: str = "word string, n long, m map<string, long>") -> None:
        self.output, self.kind = output, SpoutKind.TRANSACTIONAL


class OneTask(IBatchSpout):
    kind = SpoutKind.TRANSACTIONAL
    output = "word string"

    def emit_batch(self, txid: int, collector: Any) -> None:
        raise NotImplementedError


def counts(name: str = "counts", kind: StateType = StateType.OPAQUE) -> Any:
    return map_state(MemoryStore(), name, kind)


def problems(build: Callable[[TridentTopology, Stream], Any]) -> list[str]:
    """Return the mistakes of a topology with one stream that `build` continues."""
    topology = TridentTopology("test")
    build(topology, topology.new_stream("in", Given()))
    with pytest.raises(TopologyError) as raised:
        topology.build()
    return list(raised.value.problems)


def one(build: Callable[[TridentTopology, Stream], Any]) -> str:
    found = problems(build)
    assert len(found) == 1, found
    return found[0]


def keep(row: Any) -> bool:
    return True


def forgetful(row: Any) -> Any:
    found = [row.n > 1]
    if not found:
        return None


class Forgetful:
    def keep(self, row: Any) -> None:
        keep(row)

    def execute(self, row: Any) -> None:
        keep(row)


def sometimes(row: Any) -> Any:
    if row.n:
        return row.n > 1


class Awaits:
    async def __call__(self, tuple: Any) -> None: ...


def yielding(row: Any) -> Any:
    yield row.n > 1


STEPS: list[tuple[str, Callable[[TridentTopology, Stream], Any]]] = [
    # -- Storm's testStreamProjectionValidation, in its order ----------------------------------------------------------
    (r"step 2, project\(wrd\): there is no field 'wrd'; did you mean 'word'\?", lambda t, s: s.project("wrd")),
    (r"step 2, each\(wrd\) with keep: there is no field 'wrd'", lambda t, s: s.each("wrd", keep, "x boolean")),
    (r"step 2, partition by fields\(wrd\): there is no field 'wrd'", lambda t, s: s.partition_by("wrd")),
    (r"step 2, aggregate Nine: there is no field 'x'", lambda t, s: s.partition_aggregate("x", Nine(), "y long")),
    (r"step 2, partial Sum: there is no field 'x'", lambda t, s: s.aggregate("x", b.Sum(), "y long")),
    (
        r"step 2, partial Sum: there is no field 'x'",
        lambda t, s: s.persistent_aggregate(counts(), "x", b.Sum(), "y long"),
    ),
    (
        r"step 2, persist state1 with .*: there is no field 'x'",
        lambda t, s: s.partition_persist(counts(), "x", Updater()),
    ),
    (
        r"step 2, partial Count by wrd: there is no field 'wrd'",
        lambda t, s: s.group_by("wrd").aggregate(None, b.Count(), "y long"),
    ),
    (
        r"query state1 with MapGet: there is no field 'x'",
        lambda t, s: s.state_query(t.new_static_state(counts()), "x", b.MapGet(), "y long"),
    ),
    (
        r"step 2, filter\(\) with forgetful: it keeps no tuple, because 'forgetful' never returns a value; return whether "
        r"the tuple is kept, or write peek\(\.\.\.\)",
        lambda t, s: s.filter(forgetful).sink("out"),
    ),
    (r"step 2, filter\(n\) with Forgetful: it keeps no tuple", lambda t, s: s.each("n", Forgetful()).sink("out")),
    (r"step 2, filter\(n\) with Forgetful: it keeps no tuple", lambda t, s: s.each("n", Forgetful).sink("out")),
    (
        r"step 2, each\(n\) with forgetful: it has no rows, because 'forgetful' never returns a value; return or yield its "
        r"rows, or write peek\(\.\.\.\)",
        lambda t, s: s.each("n", forgetful, "x long").sink("out"),
    ),
    (r"step 2, each\(n\) with Forgetful: it has no rows", lambda t, s: s.each("n", Forgetful(), "x long").sink("out")),
    (r"step 2, flat_map with forgetful: it has no rows", lambda t, s: s.flat_map(forgetful, "m long").sink("out")),
    (
        r"window 2 tuples / 2 tuples with forgetful: it has no rows, because 'forgetful' never returns a value; return or yield "
        r"its rows$",
        lambda t, s: s.tumbling_window(count(2), None, forgetful, "m long").sink("out"),
    ),
    (
        r"step 2, filter\(word, n\) with FirstN: FirstN\(n=2, field='n', reverse=True\) is made of several steps; write "
        r"stream\.apply_assembly\(FirstN\(\.\.\.\)\)",
        lambda t, s: s.each(("word", "n"), b.FirstN(2, "n", True)).sink("out"),
    ),
    (r"map with FirstN: FirstN\(.*\) is made of several steps; write", lambda t, s: s.map(b.FirstN(2)).sink("out")),
    # -- fields --------------------------------------------------------------------------------------------------------
    (r"each\(n\) with keep: field 'WORD' is there already", lambda t, s: s.each("n", keep, "WORD boolean")),
    (r"project\(n, n\): field 'n' is named twice", lambda t, s: s.project("n", "n")),
    (r"project\(\): it names no field", lambda t, s: s.project()),
    (
        r"each\(n\) with keep: field 'x' has an unknown type 'lnog'; did you mean 'long'",
        lambda t, s: s.each("n", keep, "x lnog"),
    ),
    (r"filter\(x\) with keep: there is no field 'x'", lambda t, s: s.filter(keep, "x")),
    (
        r"aggregate Count, Sum: field 'x' is there already",
        lambda t, s: chain(s, "partition_aggregate", "x long", "x long"),
    ),
    (
        r"partial Count by word: field 'word' is there already",
        lambda t, s: s.group_by("word").aggregate(None, b.Count(), "word long"),
    ),
    (
        r"partial Count by word, word: field 'word' is named twice",
        lambda t, s: s.group_by("word", "word").aggregate(None, b.Count(), "x long"),
    ),
    (
        r"partition by fields\(\): it names no field; there are .*; name those of the key, or use global_\(\)$",
        lambda t, s: s.partition_by(),
    ),
    (r"field 'm' of type map<string,bigint> cannot be part of a key", lambda t, s: s.partition_by("m")),
    (
        r"field 'm' of type map<string,bigint> cannot be part of a key",
        lambda t, s: s.group_by("m").aggregate(None, b.Count(), "x long"),
    ),
    (
        r"partial Count by : it names no field; there are word, n, m; name those of the key$",
        lambda t, s: s.group_by().aggregate(None, b.Count(), "x long"),
    ),
    (r"step 2, aggregate MinBy: there is no field 'x'", lambda t, s: s.min_by("x")),
    (r"step 2, aggregate FirstN: there is no field 'x'", lambda t, s: s.apply_assembly(b.FirstN(3, "x"))),
    # -- arguments -----------------------------------------------------------------------------------------------------
    (r"each\(n\) with later: 'later' is async, but a tuple is handed out", lambda t, s: s.each("n", later, "x long")),
    (
        r"each\(n\) with Awaits: .*Awaits.* is async, but a tuple is handed out",
        lambda t, s: s.each("n", Awaits(), "x long"),
    ),
    (r"Needy.* cannot be called with \(\)", lambda t, s: s.each("n", Needy, "x long")),
    (r"Needy.prepare.* cannot be called with \(context\)", lambda t, s: s.each("n", Needy(1), "x long")),
    (
        r"filter\(\) with yielding: 'yielding' yields, but its answer is what it returns",
        lambda t, s: s.filter(yielding),
    ),
    (r"peek with yielding: 'yielding' yields, but its answer", lambda t, s: s.peek(yielding)),
    (r"map with yielding: 'yielding' yields, but its answer", lambda t, s: s.map(yielding)),
    (r"3 is no function and has no execute", lambda t, s: s.each("n", 3, "x long")),
    (
        r"each\(n\) with <lambda>: .*<lambda>\(\) cannot be called with a tuple",
        lambda t, s: s.each("n", lambda: 1, "x long"),
    ),
    (r"takes a collector, but its answer is what it returns", lambda t, s: s.map(lambda row, collector: None)),
    (r"no aggregator; give an instance, not the class", lambda t, s: s.aggregate("n", b.Sum, "x long")),
    (
        r"Count\(3\) is no aggregator but a length of windows, and the aggregator Count\(\) is in windowing.trident; give",
        lambda t, s: s.partition_aggregate("n", count(3), "x long"),
    ),
    (r"3 is no aggregator; give an object with init", lambda t, s: s.partition_aggregate("n", 3, "x long")),
    (
        r"Sum is a combiner, which makes one value, but its output is a bigint, b bigint",
        lambda t, s: s.aggregate("n", b.Sum(), "a long, b long"),
    ),
    (r"the chain names no aggregator", lambda t, s: s.chained_agg().chain_end()),
    (r"a chain behind step 1, spout in has aggregate and partition_aggregate", lambda t, s: mixed(s)),
    (r"it partitions by 3; give a function of \(values, tasks\)", lambda t, s: s.partition(3).project("n")),
    (
        r"it partitions by .*Prepared.*; it has prepare, which nothing calls",
        lambda t, s: s.partition(Prepared()).project("n"),
    ),
    (r"has no update_state\(state, tuples, collector\)", lambda t, s: s.partition_persist(counts(), "n", 3)),
    (
        r"make_state takes \(one\): .*write a function of \(partition, partitions\)",
        lambda t, s: s.partition_persist(
            type("Own", (), {"kind": StateType.OPAQUE, "make_state": staticmethod(lambda one: one)}), "n", Updater()
        ),
    ),
    (r"is given the state 3; give a StateFactory", lambda t, s: s.partition_persist(3, "n", Updater())),
    (
        r"wants 0 partitions; give a whole number",
        lambda t, s: s.partition_persist(StateSpec(counts(), 0), "n", Updater()),
    ),
    (
        r"has accept='once'; give a Guarantee",
        lambda t, s: s.partition_persist(StateSpec(counts(), 1, "once"), "n", Updater()),
    ),  # type: ignore[arg-type]
    (r"state_query is given 3; give a TridentState", lambda t, s: s.state_query(3, "n", b.MapGet(), "x long")),  # type: ignore[arg-type]
    (
        r"has no batch_retrieve; give a QueryFunction",
        lambda t, s: s.state_query(t.new_static_state(counts()), "n", 3, "x long"),
    ),
    (
        r"state1 is a static state, which no stream writes",
        lambda t, s: t.new_static_state(counts()).new_values_stream(),
    ),
    (
        r"makes one value, but its output is a bigint, b bigint",
        lambda t, s: s.persistent_aggregate(counts(), "n", Reduce(), "a long, b long"),
    ),
    (
        r"step \d, persist state1 with MinBy.*: MinBy emits rows, and has no value to add to the stored one",
        lambda t, s: s.persistent_aggregate(counts(), None, b.MinBy("n"), "word string, n long, m long"),
    ),
    (
        r"MinBy emits rows, and has no value to add to the stored one; give an aggregator with init, combine, zero",
        lambda t, s: s.group_by("word").persistent_aggregate(counts(), ("n", "m"), b.MinBy("n"), "n long, m long"),
    ),
    (
        r"persist state1 with Yielding: Yielding.update_state is a generator \(it has a yield\), whose body",
        lambda t, s: s.partition_persist(counts(), "n", Yielding()),
    ),
    (
        r"persist state1 with Later: Later.update_state is a coroutine \(async def\), whose body such a call does not run",
        lambda t, s: s.partition_persist(counts(), "n", Later),
    ),
    (
        r"class 'NeedyUpdater'.* cannot be called with \(\).*; each task makes its own without arguments; give an instance",
        lambda t, s: s.partition_persist(counts(), "n", NeedyUpdater),
    ),
    (
        r"persist state1 with StormUpdater: class 'StormUpdater' lacks update_state; write what its base class leaves open",
        lambda t, s: s.partition_persist(counts(), "n", StormUpdater),
    ),
    (
        r"query state1 with StormQuery: class 'StormQuery' lacks batch_retrieve; write",
        lambda t, s: s.state_query(t.new_static_state(counts()), "n", StormQuery, "x long"),
    ),
    (
        r"query state1 with Yielding: Yielding.execute is a generator",
        lambda t, s: s.state_query(t.new_static_state(counts()), "n", Yielding(), "x long"),
    ),
    (
        r"aggregate Yielding: Yielding.aggregate is a generator .*; give a plain function",
        lambda t, s: s.aggregate("n", Yielding(), "x long"),
    ),
    (
        r"window 2 tuples / 2 tuples with Yielding: Yielding.aggregate is a generator",
        lambda t, s: s.tumbling_window(count(2), "n", Yielding(), "x long"),
    ),
    (
        r"Later.reduce is a coroutine",
        lambda t, s: s.group_by("word").persistent_aggregate(counts(), "n", Later(), "x long"),
    ),
    (
        r"partial Short: Short.combine takes \(a: 'int'\) -> 'int': too many positional arguments; write a function of \(a, b\)",
        lambda t, s: s.aggregate("n", Short(), "x long"),
    ),
    (
        r"aggregate Dropping: Dropping.reduce never returns a value, so the aggregate would be None; return the aggregate",
        lambda t, s: s.aggregate("n", Dropping(), "x long"),
    ),
    (
        r"persist state1 with Dropping: Dropping.reduce never returns a value",
        lambda t, s: s.group_by("word").persistent_aggregate(counts(), "n", Dropping(), "x long"),
    ),
    (r"Lost.combine never returns a value", lambda t, s: s.aggregate("n", Lost(), "x long")),
    # -- several streams -----------------------------------------------------------------------------------------------
    (
        r"merge: stream 1 has word string.*, stream 2 has n bigint; merged streams have the same types",
        lambda t, s: t.merge(s, s.project("n")),
    ),
    (r"merge: names is .*, 1 for the 3 fields", lambda t, s: t.merge(s, s, names="x")),
    (r"merge is given 1 streams; give two or more", lambda t, s: t.merge(s)),
    (r"join is given 0 streams; give two or more", lambda t, s: t.join([], "word")),
    (r"merge is given 3; give streams", lambda t, s: t.merge(s, 3)),  # type: ignore[arg-type]
    (r"merge is given .* of another topology", lambda t, s: t.merge(s, TridentTopology().new_stream("x", Given()))),
    (r"a join of 2 streams is given 1 keys and 2 kinds", lambda t, s: t.join([s, s], ["word"])),
    (
        r"join by word and n: the key of stream 1 is word string, that of stream 2 is n bigint",
        lambda t, s: t.join([s, s], ["word", "n"]),
    ),
    (r"join by word and word: field 'n' is there already", lambda t, s: t.join([s, s], "word")),
    (
        r"names is .*'a', 'b'.*, 2 for the 1 fields word; name each of them, the key first, without types",
        lambda t, s: t.join([s.project("word"), s.project("word")], "word", ("a", "b")),
    ),
    (
        r"is no JoinType",
        lambda t, s: t.join([s.project("word"), s.project("word")], "word", kinds=["left", JoinType.OUTER]),
    ),  # type: ignore[list-item]
    (
        r"step 4, partition by fields\(m\): field 'm' of type map<string,bigint> cannot be part of a key",
        lambda t, s: t.join([s.project("m"), s.project("word")], ["m", "word"]),
    ),
    # -- windows -------------------------------------------------------------------------------------------------------
    (r"timestamp is 'at', a field that is not there", lambda t, s: win(s, timestamp="at")),
    (
        r"timestamp is 'word', a field of type string: no value of it is a timestamp",
        lambda t, s: win(s, timestamp="word"),
    ),
    (r"source is 'x', a field that is not there", lambda t, s: win(s, timestamp="n", source="x")),
    (r"length must be positive", lambda t, s: s.tumbling_window(seconds(0), "n", b.Sum(), "x long", timestamp="n")),
    (r"lag=.* needs timestamp=", lambda t, s: win(s, lag=seconds(1))),
    (
        r"late_stream='late' is for bolts: the late tuples of a Trident window are a stream",
        lambda t, s: win(s, timestamp="n", late_stream="late"),
    ),
    (r"message_id='n' is for bolts", lambda t, s: win(s, timestamp="n", message_id="n")),
    (
        r"on_error='fail' is for bolts: .* \(on_error='raise'\), or goes on without the window \('skip'\); leave it out",
        lambda t, s: win(s, timestamp="n", on_error="fail"),
    ),
    (r"on_error='dead_letter' is for bolts", lambda t, s: win(s, timestamp="n", on_error=OnError.DEAD_LETTER)),
    (r"on_error is one of .*, got 'fial'; did you mean 'fail'", lambda t, s: win(s, timestamp="n", on_error="fial")),
    (r"semantics='storm' is for bolts", lambda t, s: win(s, timestamp="n", semantics=Semantics.STORM)),
    (r"columnar='arrow' is for bolts", lambda t, s: win(s, timestamp="n", columnar="arrow")),
    (r"late tuples: no tuple is late without a timestamp", lambda t, s: win(s).late_stream()),
    (
        r"key= is what group_by says already",
        lambda t, s: s.group_by("word").tumbling_window(count(2), "n", b.Sum(), "x long", key="word"),
    ),
    (r"key= is for a function of \(window\)", lambda t, s: win(s, key="word")),
    (
        r"key is 'm', a field that has no hash: maps that are equal may be stored in another order",
        lambda t, s: s.tumbling_window(count(2), None, len, "x long", key=("n", "m")),
    ),
    (
        r"with Sum: field 'word' is there already",
        lambda t, s: s.group_by("word").tumbling_window(count(2), "n", b.Sum(), "word long"),
    ),
    (
        r"window 2 tuples / 2 tuples with Sum stands behind the new values of .*persist state1",
        lambda t, s: win(s.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "n long").new_values_stream()),
    ),
    # -- the plan ------------------------------------------------------------------------------------------------------
    (r"has parallelism_hint\(0\); give a number of tasks", lambda t, s: s.parallelism_hint(0)),
    (r"has parallelism_hint\(2\), but only moves tuples", lambda t, s: s.shuffle().parallelism_hint(2)),
    (r"the name 'in' is given to 2 streams", lambda t, s: t.new_stream("in", Given())),
    (r"the name 'out' is given to 2 sinks", lambda t, s: (s.sink("out"), s.project("n").sink("OUT"))),
    (r"sink a b: the name of a sink must be a name", lambda t, s: s.sink("a b")),
    (r"the name of a stream is a name of letters.*got 'a b'", lambda t, s: t.new_stream("a b", Given())),
    (r"what step 2, project\(n\) is called is a name of letters", lambda t, s: s.name("a b").project("n")),
    (r"step 2, spout x: 'int' is not declared as a component", lambda t, s: t.new_stream("x", 3)),
    (r"step 2, spout x: 'Given' is not declared as a component", lambda t, s: t.new_stream("x", Given)),
    (
        r"step 2, spout x: its spout is the text 'in'; write new_stream\('sentences', spout\)",
        lambda t, s: t.new_stream("x", "in"),
    ),
    (
        r"step 2, partial Sum: Sum is of one field, got word string, n bigint, m .*; name it, as in \('amount', Sum\(\), 'total",
        lambda t, s: s.aggregate(None, b.Sum(), "x long"),
    ),
    (
        r"Max is of one field, got word string, n bigint; name it",
        lambda t, s: s.group_by("word").partition_aggregate(["word", "n"], b.Max(), "x long"),
    ),
    (
        r"Min is of one field, got word string, n bigint, m .*; name it",
        lambda t, s: s.group_by("word").persistent_aggregate(counts(), None, b.Min(), "x long"),
    ),
    (
        r"Sum is of one field, got word string, n bigint, m .*; name it",
        lambda t, s: s.chained_agg().aggregate("n", b.Max(), "m long").aggregate(None, b.Sum(), "x long").chain_end(),
    ),
    (
        r"Sum is of one field, got word string, n bigint, m .*; name it",
        lambda t, s: s.tumbling_window(count(2), None, b.Sum(), "x long"),
    ),
    (r"does not say its fields", lambda t, s: t.new_stream("x", Given(""))),
    (r"topology.max.task.parallelism is", lambda t, s: t.configure({"topology.max.task.parallelism": 0})),
    (
        r"step 3, project\(word\) asks for 3 tasks, but spout one has one and nothing between them moves tuples; put .shuffle\(\)",
        lambda t, s: t.new_stream("one", OneTask()).project("word").parallelism_hint(3),
    ),
    (
        r"step 4, project\(word\) asks for 3 tasks, but spout one has one and nothing between it and step 5, merge, moves tuples",
        lambda t, s: merged_with_a_branch_of_three(t),
    ),
    (
        r"state1 asks for 3 tasks, but spout one has one and nothing between it and step 5, merge, moves tuples; put .shuffle",
        lambda t, s: merged_with_new_values(t),
    ),
    (
        r"step 2, spout one asks for 3 tasks, but such a spout has one; leave out the hint; a step behind .shuffle\(\)",
        lambda t, s: t.new_stream("one", OneTask()).parallelism_hint(3).shuffle().project("word"),
    ),
    (
        r"state1 wants 2 partitions, state2 wants 3 partitions, but nothing between them moves tuples",
        lambda t, s: [s.partition_persist(StateSpec(counts(f"c{n}"), n), "n", Updater()) for n in (2, 3)],
    ),
    (
        r"query state1 with MapGet asks state1, which has 3 partitions by word string, but its tuples come there by shuffle; put",
        lambda t, s: strays(s, s.shuffle()),
    ),
    (
        r"asks state1, which has 3 partitions by word string, but its tuples come there by n bigint",
        lambda t, s: strays(s, s.partition_by("n")),
    ),
    (
        r"asks state1, which has 3 partitions by word string, but its tuples come there by spout in; put",
        lambda t, s: strays(s, s),
    ),
    (
        r"3 partitions by word string, but its tuples come there by word string and ask for the key other; put \.partition_by",
        lambda t, s: strays(s, s.each("word", keep_text, "other string").partition_by("word"), "other"),
    ),
    (
        r"query state1 with MapGet asks state1 by args string, but its keys are n bigint, so no key is ever equal; ask by "
        r"fields of these types, made by \.each\('args', lambda row: \[\.\.\.\], 'n bigint'\), for one",
        lambda t, s: by_map_get(s.group_by("n"), t.new_drpc_stream("of"), "args"),
    ),
    (
        r"asks state1 by other array<string>, but its keys are word string, so no key is ever equal; ask by fields of "
        r"these types, made by \.each\('other', lambda row: \[\.\.\.\], 'word string'\)",
        lambda t, s: by_map_get(s.group_by("word"), t.new_stream("of", Given("other array<string>")), "other"),
    ),
    (
        r"asks state1 by word string, n bigint, m .*, but its keys are word string, so no key is ever equal; name as many fields "
        r"as the key has, in its order",
        lambda t, s: by_map_get(s.group_by("word"), t.new_stream("of", Given()), None),
    ),
    (
        r"asks state1 by w string, but its keys are word string, n bigint, so no key is ever equal; name as many",
        lambda t, s: by_map_get(s.group_by("word", "n"), t.new_stream("of", Given("w string")), "w"),
    ),
    (
        r"by word string, other string, but its tuples come there by other string, word string and ask for the key word, other;",
        lambda t, s: strays(*[s.each("word", keep_text, "other string")] * 2, ("word", "other"), by=("other", "word")),
    ),
    (
        r"with TupleCollectionGet asks state1, .* but its tuples come there by word string; put \.broadcast\(\) before it",
        lambda t, s: strays(s, s.partition_by("word"), query=b.TupleCollectionGet(), output="k string, x long"),
    ),
    (
        r"asks state1, which has its one value in the first of 3 partitions, but its tuples come there by all; put \.global_\(\)",
        lambda t, s: one_value(s, s.broadcast()),
    ),
    (
        r"state1 is a static state, which no stream writes, so it has no tasks; put the hint behind its state_query",
        lambda t, s: t.new_static_state(counts()).parallelism_hint(3),
    ),
    (
        r"step 2, spout fed: 'an InputSpout' declares its fields, n bigint, so output='m long' has no effect; leave it out",
        lambda t, s: t.new_stream("fed", InputSpout("n long"), "m long"),
    ),
    (r"'outer' is no JoinType", lambda t, s: t.join([s, s.project("word")], "word", kinds="outer")),
    (r"writes the same state as step 2, .*; give each a name of its own", lambda t, s: twice(s)),
    (
        r"drpc f is merged or joined with spout in, but a request is no batch",
        lambda t, s: t.merge(t.new_drpc_stream("f"), s.project("word")),
    ),
    (r"works on requests of drpc f, which are no transactions", lambda t, s: t.new_drpc_stream("f").sink("out")),
    (r"drpc f has no step that answers", lambda t, s: t.new_drpc_stream("f")),
    (r"drpc f has no step that answers", lambda t, s: t.new_drpc_stream("f").partition_by("args")),
    (
        r"spout in is transactional and state1 is non-transactional: tuples count at least once, wanted exactly once",
        lambda t, s: s.partition_persist(counts("c", StateType.NON_TRANSACTIONAL), "n", Updater()),
    ),
    (r"asks the state that .* has just written, behind its new values", lambda t, s: own_tail(s)),
]


async def later(row: Any) -> int:
    return 1


class Needy:
    def __init__(self, what: int) -> None:
        self.what = what

    def prepare(self) -> None: ...

    def execute(self, row: Any) -> int:
        return self.what


class Nine:
    def init(self, batch_id: Any, collector: Any) -> None: ...
    def aggregate(self, value: Any, row: Any, collector: Any) -> None: ...
    def complete(self, value: Any, collector: Any) -> None: ...


class NeedyUpdater(Needy):
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...


class Yielding:
    """A user's object whose methods are generators, so that a call runs nothing of them."""

    def init(self, batch_id: Any, collector: Any) -> None: ...

    def aggregate(self, value: Any, row: Any, collector: Any) -> Any:
        yield row

    def complete(self, value: Any, collector: Any) -> None: ...

    def update_state(self, state: Any, tuples: Any, collector: Any) -> Any:
        yield from tuples

    def batch_retrieve(self, state: Any, tuples: Any) -> Any:
        yield from tuples

    def execute(self, row: Any, result: Any, collector: Any) -> Any:
        yield row


class Later:
    def init(self) -> int:
        return 0

    async def reduce(self, current: int, row: Any) -> int:
        return current

    async def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...


class StormUpdater(StateUpdater[Any]):
    def updateState(self, state: Any, tuples: Any, collector: Any) -> None: ...  # noqa: N802  # Storm's name


class StormQuery(QueryFunction[Any]):
    def batchRetrieve(self, state: Any, tuples: Any) -> None: ...  # noqa: N802  # Storm's name
    def execute(self, tuple: Any, result: Any, collector: Any) -> None: ...


class Prepared:
    """A custom grouping in Storm's form."""

    def prepare(self, context: Any, stream: Any, targets: Any) -> None: ...
    def choose_tasks(self, values: Any, tasks: int) -> int:
        return 0


class Short:
    def init(self, row: Any) -> int:
        return 0

    def combine(self, a: int) -> int:
        return a

    def zero(self) -> int:
        return 0


class Reduce:
    def init(self) -> int:
        return 0

    def reduce(self, current: int, row: Any) -> int:
        return current


class Dropping(Reduce):
    def reduce(self, current: int, row: Any) -> Any:
        current += row.n


class Lost(Short):
    def combine(self, a: int, b: int) -> Any:  # type: ignore[override]
        a += b


class Updater:
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...


def chain(stream: Stream, method: str, *outputs: str) -> Stream:
    declared = stream.chained_agg()
    for output, (inputs, aggregator) in zip(outputs, ((None, b.Count()), ("n", b.Sum())), strict=True):
        declared = getattr(declared, method)(inputs, aggregator, output)
    return declared.chain_end()


def mixed(stream: Stream) -> Stream:
    declared = stream.chained_agg().aggregate(None, b.Count(), "x long")
    return declared.partition_aggregate("n", b.Sum(), "y long").chain_end()


def win(stream: Stream, **options: Any) -> WindowOutput:
    return stream.tumbling_window(count(2), "n", b.Sum(), "x long", **options)


def twice(stream: Stream) -> None:
    state = counts()
    stream.partition_persist(state, "n", Updater())
    stream.partition_persist(state, "n", Updater())


def merged_with_a_branch_of_three(topology: TridentTopology) -> Stream:
    one = topology.new_stream("one", OneTask())
    return topology.merge(one, one.shuffle().project("word").parallelism_hint(3))


def merged_with_new_values(topology: TridentTopology) -> Stream:
    one = topology.new_stream("one", OneTask())
    three = one.partition_by("word").partition_persist(StateSpec(counts(), 3), "word", Updater(), "word string")
    return topology.merge(three.new_values_stream(), one)


def strays(
    stream: Stream,
    asking: Stream,
    key: str | tuple[str, ...] = "word",
    *,
    by: Any = None,
    query: Any = None,
    output: str = "x long",
) -> Stream:
    grouped = stream.group_by("word" if by is None else key)
    state = grouped.persistent_aggregate(counts(), "n", b.Sum(), "total long").parallelism_hint(3)
    brought = asking if by is None else asking.partition_by(by)
    return brought.filter(keep).state_query(state, key, query or b.MapGet(), output)


def keep_text(row: Any) -> list[str]:
    return [row[0]]


def by_map_get(grouped: Any, asking: Stream, key: Any, state: Any = None, query: Any = None) -> Stream:
    kept = grouped.persistent_aggregate(state or counts(), "n", b.Sum(), "total long")
    asked: Stream = asking.state_query(kept, key, query or b.MapGet(), "x long")
    return asked


def one_value(stream: Stream, asking: Stream) -> Stream:
    state = stream.persistent_aggregate(StateSpec(counts(), 3), "n", b.Sum(), "total long")
    return asking.filter(keep).state_query(state, None, b.SnapshotGet(), "x long")


def own_tail(stream: Stream) -> Stream:
    state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "total long")
    return state.new_values_stream().state_query(state, "word", b.MapGet(), "x long")


@pytest.mark.parametrize(("sentence", "build"), STEPS, ids=[sentence[:60] for sentence, _ in STEPS])
def test_each_mistake_is_reported_in_one_sentence(
    sentence: str, build: Callable[[TridentTopology, Stream], Any]
) -> None:
    found = one(build)
    assert re.search(sentence, found), found
    assert "\n" not in found


def test_all_mistakes_are_reported_together_without_their_consequences() -> None:
    def build(topology: TridentTopology, stream: Stream) -> None:
        stream.project("wrd").each("n", keep, "x long").sink("out")
        stream.each("k", keep, "word boolean")
        stream.shuffle().parallelism_hint(-1)

    found = problems(build)
    assert [re.sub(r",? .*", "", problem.replace("step ", "step_")) for problem in found] == [
        "step_2",
        "step_5",
        "step_5",
        "step_6",
    ]


def test_a_join_without_a_key_is_reported_for_each_side() -> None:
    found = problems(lambda t, s: t.join([s.project("word"), s.project("n")], [(), ()]))
    assert len(found) == 2
    assert [problem.split("it names ")[1] for problem in found] == [
        "no field; there are word; name those of the key, or use global_()",
        "no field; there are n; name those of the key, or use global_()",
    ]


def test_an_empty_topology_is_refused() -> None:
    with pytest.raises(TopologyError, match="there is no stream, so there is nothing to work on"):
        TridentTopology().build()


def test_a_topology_name_that_is_no_name_is_refused() -> None:
    with pytest.raises(TopologyError, match="the name of a topology is a name of letters"):
        TridentTopology("a b").build()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda t, s: s.aggregate(b.Count()),
            r"aggregate: missing .*'aggregator'; write aggregate\(None, Count\(\), 'n long'\)",
        ),
        (
            lambda t, s: s.aggregate(b.Count(), "n long"),
            r"aggregate: its fields are Count\(\), which is no name of a field; write",
        ),
        (
            lambda t, s: s.group_by("word").aggregate(b.Sum(), "n long"),
            r"aggregate: its fields are Sum\(\).*; write aggregate\(",
        ),
        (lambda t, s: s.partition_aggregate(Nine(), "n long"), r"partition_aggregate: its fields are .*; write"),
        (
            lambda t, s: s.chained_agg().aggregate(b.Count(), "n long"),
            r"aggregate: its fields are Count\(\), which is no name of a field",
        ),
        (
            lambda t, s: s.group_by("word").persistent_aggregate(counts(), b.Count(), "n long"),
            r"missing .*'output'; write persistent_aggregate\(state, None, Count\(\), 'n long'\)",
        ),
        (
            lambda t, s: s.partition_persist(counts(), Updater()),
            r"missing .*'updater'; write partition_persist\(state, 'word'",
        ),
        (
            lambda t, s: s.partition_persist(counts(), Updater(), "n long"),
            r"its fields are .*Updater.*; write partition_persist\(state, 'word'",
        ),
        (
            lambda t, s: s.state_query(t.new_static_state(counts()), b.MapGet(), "n long"),
            r"missing .*'output'; write state_query\(state, 'word', MapGet\(\), 'n long'\)",
        ),
        (
            lambda t, s: s.state_query(t.new_static_state(counts()), b.MapGet(), None, "n long"),
            r"its fields are MapGet\(\)",
        ),
        (
            lambda t, s: s.each(keep, "x boolean"),
            r"each: its fields are <function keep.*; write each\('sentence', split",
        ),
        (
            lambda t, s: s.tumbling_window(count(2), MemoryStore(), "word", b.Count(), "n long"),
            r"too many positional arguments; write tumbling_window\(count\(100\), .*a window needs no store",
        ),
        (lambda t, s: s.sliding_window(count(2), count(1), b.Count(), "n long"), r"missing .*; write sliding_window\("),
        (lambda t, s: s.window(count(2), b.Count(), "n long"), r"window: missing .*; write window\(seconds\(10\)"),
        (
            lambda t, s: t.join(s, "word", s, "word", ("word", "n")),
            r"join: too many .*; write join\(\[one, other\], \['id', 'user'\]",
        ),
        (lambda t, s: t.new_stream(Given()), r"new_stream: missing .*'spout'; write new_stream\('sentences', spout\)"),
        (
            lambda t, s: t.new_drpc_stream("f", None),
            r"too many .*; write new_drpc_stream\('count_of'\); TridentCluster",
        ),
        (lambda t, s: s.filter("word", keep), r"filter: its fields are <function keep.*; write filter\(condition\)"),
        (lambda t, s: s.filter("word", b.FilterNull()), r"filter: its fields are FilterNull\(\), .* filter\(condition"),
    ],
)
def test_a_storm_overload_or_a_wrong_call_is_refused_with_the_call_to_write(
    call: Callable[[TridentTopology, Stream], Any], sentence: str
) -> None:
    topology = TridentTopology("test")
    with pytest.raises(ConfigError, match=sentence):
        call(topology, topology.new_stream("in", Given()))


@pytest.mark.parametrize("n", [-1, 2.0, "3", True])
def test_first_n_refuses_what_is_no_number_of_tuples(n: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"FirstN keeps a whole number of tuples, 0 or more, got .*; write FirstN\(3\)"
    ):
        b.FirstN(n)


def test_first_n_in_reverse_order_needs_a_field() -> None:
    with pytest.raises(ConfigError, match="FirstN has reverse=True but no field to order by; write FirstN"):
        b.FirstN(3, reverse=True)


def test_a_store_or_a_path_in_place_of_a_state_is_refused_with_the_factory_to_write() -> None:
    for given in (MemoryStore(), "counts.db"):
        sentence = one(
            lambda t, s, given=given: s.group_by("word").persistent_aggregate(given, None, b.Count(), "x long")
        )
        assert "give a StateFactory: map_state(SqliteStore('counts.db'), 'counts') of windowing.stores" in sentence


def test_importing_a_name_of_storms_trident_is_refused_with_the_name_here() -> None:
    for name, written in {
        "MemoryMapState": r"map_state\(store, 'counts'\) of windowing.stores",
        "LocalDRPC": r"TridentCluster\(topology\).ask\('count_of', 'to be'\)",
        "SlidingDurationWindow": "stream.sliding_window",
        "BaseFunction": r"a function of \(row\)",
        "Config": r"TopologyBuilder\(name\).configure",
        "seconds": "from windowing import seconds",
        "run_trident": "from windowing.local import run_trident",
        "LocalCluster": "from windowing.local import TridentCluster",
        "WindowConfig": "stream.sliding_window",
    }.items():
        with pytest.raises(ImportError, match=f"windowing.trident has no '{name}'; write {written}"):
            exec(f"from windowing.trident import {name}")


def test_no_name_that_is_refused_as_storms_is_exported() -> None:
    assert set(by_name(_ELSEWHERE)).isdisjoint(windowing.__all__ + windowing.trident.__all__)


def test_other_wrong_arguments_raise_only_in_build() -> None:
    topology: Any = TridentTopology(3)  # type: ignore[arg-type]
    stream: Any = topology.new_stream(None, None)
    stream.each(3, None, 5).group_by(None, 7).aggregate(1, 2, 3).partition_by(4).window(1, 2, 3, 4, 5, timestamp=6)
    stream.state_query(None, None, None, None).name(4).parallelism_hint("x").sink(3)
    topology.join([None, 3], 4, 5, [6])
    topology.merge()
    with pytest.raises(TopologyError):
        topology.build()


def test_a_query_may_be_partitioned_by_the_key_broadcast_or_of_a_single_partition() -> None:
    topology = TridentTopology()
    stream = topology.new_stream("in", Given())
    strays(stream, stream.partition_by("word"))
    strays(stream, stream.broadcast())
    one_value(stream, stream.global_())
    state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "total long")
    stream.shuffle().state_query(state, "word", b.MapGet(), "x long")
    renamed = stream.partition_by("word").map(lambda row: (row.n, row.word), "n long, key string")
    strays(stream, renamed, "key")
    with pytest.warns(UserWarning, match="query state1 with MapGet; .* go to no sink and no state"):
        plan = topology.build()
    assert [state.partitions for state in plan.states.values()] == [3, 3, 3, 1, 3]


def test_an_aggregator_that_inherits_from_sum_may_read_several_fields() -> None:
    class Weighted(b.Sum):
        def init(self, tuple: Any) -> int:
            return int(tuple[0] * tuple[1])

    topology = TridentTopology("weighted")
    rows = topology.new_stream("in", InputSpout("n long, weight long"))
    rows.aggregate(("n", "weight"), Weighted(), "total long").sink("out")
    assert TridentRun(topology.build()).batch({"in": [(2, 3), (4, 5)]})["out"] == [(26,)]


def test_a_step_whose_rows_go_nowhere_is_warned_of_when_the_topology_is_built() -> None:
    topology = TridentTopology("words")
    stream = topology.new_stream("in", Given())
    stream.map(len, "n long")
    stream.project("word").filter(b.Debug())
    stream.peek(print)
    stream.project("n").sink("out")
    stream.group_by("word").persistent_aggregate(counts(), None, b.Count(), "x long")
    topology.new_drpc_stream("ask").project("args").partition_by("args")
    with pytest.warns(UserWarning, match="go to no sink") as caught:
        topology.build()
    assert [str(each.message) for each in caught] == [
        "topology 'words': the rows of step 2, map with len go to no sink and no state; write .sink('name') behind it, or "
        ".peek(function) in place of a function that is called for its effects"
    ]
    assert caught[0].filename == __file__


def test_a_snapshot_state_for_a_grouped_aggregate_is_refused_before_the_first_batch() -> None:
    topology = TridentTopology()
    one_value = snapshot_state(MemoryStore(), "total")
    topology.new_stream("in", Given()).group_by("word").persistent_aggregate(one_value, "n", b.Sum(), "total long")
    with pytest.raises(
        ConfigError, match="a SnapshottableMap has one value, but the aggregate is kept by key; give a map state"
    ):
        TridentRun(topology.build())


@pytest.mark.parametrize(
    ("fields", "query", "output", "told"),
    [
        (
            "word",
            b.MapGet(),
            "x long",
            r"has no multi_get, so it is no map; .*state_query\(state, None, SnapshotGet\(\)",
        ),
        ("word", b.TupleCollectionGet(), "k string, x long", r"has no items, so it is no map; .* SnapshotGet\(\)"),
        (
            None,
            b.SnapshotGet(),
            "x long",
            r"has no get, so it is no single value; .*state_query\(state, 'word', MapGet\(\)",
        ),
    ],
)
def test_a_query_of_a_state_of_the_other_shape_names_the_query_to_use(
    fields: str | None, query: Any, output: str, told: str
) -> None:
    topology = TridentTopology()
    stream = topology.new_stream("in", Given())
    keyed = stream if fields else stream.group_by("word")
    state = keyed.persistent_aggregate(counts(), "n", b.Sum(), "total long")
    asked = topology.new_drpc_stream("now").each("args", lambda row: row.args, "word string")
    (asked.global_() if fields else asked.broadcast()).state_query(state, fields, query, output)
    with pytest.raises(BoltError, match=f"query state1 with {type(query).__name__}.* TypeError: the state {told}"):
        TridentRun(topology.build()).ask("now", "a")


class Texts:
    """A codec for which keys of equal text are equal."""

    name = "texts"

    def encode(self, value: Any) -> bytes:
        return str(value[0] if isinstance(value, tuple) else value).encode()

    def decode(self, blob: bytes, what: str) -> Any:
        return int(blob)


class Converting(b.MapGet):
    def batch_retrieve(self, state: Any, tuples: Any) -> Any:
        return super().batch_retrieve(state, [(int(row[0]),) for row in tuples])


@pytest.mark.parametrize(
    ("output", "key", "state", "query"),
    [
        ("args int", "n", None, None),  # equal to a bigint
        ("args string", "n", map_state(MemoryStore(), "texts", codec=Texts()), None),
        ("args string", "n", None, Converting()),
        ("args string", "n", None, Converting),
        ("args string", "word", None, b.MapGet),
    ],
)
def test_a_query_by_map_get_with_keys_that_may_be_equal_is_accepted(
    output: str, key: str, state: Any, query: Any
) -> None:
    topology = TridentTopology()
    grouped = topology.new_stream("in", Given()).group_by(key)
    by_map_get(grouped, topology.new_stream("of", Given(output)), "args", state, query).sink("out")
    topology.build()


@pytest.mark.parametrize(
    "condition",
    [sometimes, lambda row: row.n or None, lambda row: row.n and row.n > 1, lambda row: row.word, partial(keep), print],
)
def test_a_condition_may_give_none_for_some_tuples_which_drops_them(condition: Any) -> None:
    topology = TridentTopology("test")
    topology.new_stream("in", Given()).filter(condition).sink("out")
    topology.build()


def test_a_filter_at_the_end_of_a_stream_may_be_there_for_its_effects() -> None:
    topology = TridentTopology("test")
    topology.new_stream("in", Given()).filter(forgetful)
    topology.build()


def emitting(row: Any, collector: Any) -> None:
    collector.emit(row.n)


@pytest.mark.parametrize("function", [yielding, emitting, sometimes, lambda row: [], partial(keep), len])
def test_a_function_may_give_no_rows_for_some_tuples(function: Any) -> None:
    topology = TridentTopology("test")
    stream = topology.new_stream("in", Given())
    stream.each("n", function, "x boolean").sink("out")
    stream.flat_map(function, "m boolean").sink("out2")
    topology.build()


def test_a_function_at_the_end_of_a_stream_may_be_there_for_its_effects() -> None:
    topology = TridentTopology("test")
    topology.new_stream("in", Given()).each("n", forgetful, "x long")
    with pytest.warns(UserWarning, match="go to no sink and no state"):
        topology.build()


def test_a_weaker_guarantee_may_be_accepted_by_name() -> None:
    topology = TridentTopology()
    spec = StateSpec(counts("c", StateType.NON_TRANSACTIONAL), accept=Guarantee.AT_LEAST_ONCE)
    topology.new_stream("in", Given()).partition_persist(spec, "n", Updater())
    assert topology.build().states["state1"].factory is spec.factory


def test_build_may_be_called_again_with_the_same_result() -> None:
    topology = TridentTopology()
    topology.new_stream("in", Given()).group_by("word").aggregate(None, b.Count(), "x long").sink("out")
    assert topology.build().explain() == topology.build().explain()


def test_every_rule_has_a_row_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "trident_streams.md").read_text()
    for rule in TRIDENT_RULES:
        assert rule.__doc__ is not None
        assert f"| {rule.__doc__.splitlines()[0]} |" in text, rule.__name__


def test_a_spout_of_batches_with_a_wrong_emit_batch_is_refused_by_build() -> None:
    class Wrong(IBatchSpout):
        kind, output = SpoutKind.TRANSACTIONAL, "n long"

        def emit_batch(self, collector: Any) -> None: ...  # type: ignore[override]

    topology = TridentTopology("wrong")
    topology.new_stream("in", Wrong()).sink("out")
    with pytest.raises(
        TopologyError, match=r"emit_batch takes \(collector.*\).*: .*write a function of \(txid, collector\)"
    ):
        topology.build()


def test_a_run_of_a_topology_that_is_not_built_says_to_build_it() -> None:
    with pytest.raises(ConfigError, match=r"TridentRun takes a TridentPlan, got .*; give topology.build\(\)"):
        TridentRun(TridentTopology("unbuilt"))  # type: ignore[arg-type]


def test_an_unknown_id_of_a_state_in_a_result_is_answered_with_those_there_are() -> None:
    topology = TridentTopology("words")
    words = topology.new_stream("in", InputSpout("word string")).group_by("word")
    words.persistent_aggregate(map_state(MemoryStore(), "counts"), None, b.Count(), "n long")
    result = run_trident(topology, {"in": [[("to",)]]})
    with pytest.raises(KeyError, match="'counts' is no id of a state with contents, there are state1"):
        result.states["counts"]


@pytest.mark.parametrize(
    "by", ["shuffle", "global_", "batch_global", "nothing", "partition_by", "broadcast", "one partition"]
)
def test_a_static_state_of_several_partitions_is_asked_in_that_of_the_key(by: str) -> None:
    topology = TridentTopology("static")
    table = StateSpec(map_state(MemoryStore(), "table"), 1 if by == "one partition" else 2)
    stream = topology.new_stream("in", InputSpout("word string"))
    if by == "partition_by":
        stream = stream.partition_by("word")
    elif by not in ("nothing", "one partition"):
        stream = getattr(stream, by)()
    stream.filter(lambda row: row.word).state_query(
        topology.new_static_state(table), "word", b.MapGet(), "n long"
    ).sink("out")
    if by in ("partition_by", "broadcast", "one partition"):
        topology.build()
        return
    told = {"nothing": "spout in", "global_": "global", "batch_global": "batchGlobal"}.get(by, by)
    with pytest.raises(
        TopologyError,
        match=rf"asks state1, which has 2 partitions by its key, but its tuples come there by {told}; put",
    ):
        topology.build()
