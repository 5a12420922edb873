"""Settings of topologies and of single components: each has its effect, or is refused by name."""

from __future__ import annotations

import pytest

from windowing import BasicBolt, InputSpout, TopologyBuilder, TopologyError, bolt, count, is_tick, seconds, tumbling
from windowing.errors import ConfigError
from windowing.local import LocalCluster, VirtualClock, run_topology
from windowing.topology.components import Spout
from windowing.topology.config import KEYS
from windowing.topology.decorators import spout
from windowing.topology.plan import Topology
from windowing.trident.spouts import FixedBatchSpout
from windowing.trident.streams import TridentTopology


@tumbling(count(2), output="n long")
def sizes(window):
    return len(window)


@bolt(output="tick boolean, own string")
class Tells(BasicBolt):
    """Emits its input tuples, and the custom keys of its configuration."""

    def prepare(self, context):
        self.own = ",".join(f"{key}={value}" for key, value in sorted(context.config.own.items()))

    def execute(self, tuple, collector):
        collector.emit((is_tick(tuple), self.own))


def topology_of(declared, own=None, **settings) -> Topology:
    builder = TopologyBuilder("settings").configure(**settings)
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("bolt", declared).shuffle_grouping("in").configure(own or {})
    return builder.build()


def rows(topology):
    return run_topology(topology, {"in": [[(1,), (2,)]]}, clock=VirtualClock())["bolt"]


def test_tick_tuples_for_a_windowed_bolt_are_refused():
    with pytest.raises(TopologyError, match=r"bolt 'bolt' asks for ticks .* handed windows.*leave it out"):
        topology_of(sizes, {"topology.tick.tuple.freq.secs": 1})


def test_tick_tuples_requested_by_a_windowed_class_are_refused_too():
    @tumbling(count(2), output="n long")
    class Sizes:
        def get_component_configuration(self):
            return {"topology.tick.tuple.freq.secs": 1}

        def execute(self, window):
            return len(window)

    with pytest.raises(TopologyError, match="bolt 'bolt' asks for ticks"):
        topology_of(Sizes)


def test_tick_tuples_for_a_topology_with_only_windowed_bolts_are_refused():
    with pytest.raises(
        TopologyError, match=r"topology\.tick\.tuple\.freq\.secs asks for ticks, but every bolt is a windowed one"
    ):
        topology_of(sizes, tick_tuple_freq=seconds(1))


def test_a_windowed_bolt_beside_a_bolt_with_ticks_gets_none():
    builder = TopologyBuilder("settings").configure(tick_tuple_freq=seconds(1))
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("windows", sizes).shuffle_grouping("in")
    builder.set_bolt("tells", Tells).shuffle_grouping("in")
    result = run_topology(builder.build(), {"in": [[(1,), (2,)]]}, clock=VirtualClock())
    assert result["windows"] == [(2,)]
    assert (True, "") in result["tells"]


def test_none_on_a_component_overrides_the_setting_of_the_topology():
    assert {tick for tick, _ in rows(topology_of(Tells, tick_tuple_freq=seconds(1)))} == {True, False}
    silent = topology_of(Tells, {"topology.tick.tuple.freq.secs": None}, tick_tuple_freq=seconds(1))
    assert {tick for tick, _ in rows(silent)} == {False}
    builder = TopologyBuilder("settings").configure(max_spout_pending=5)
    builder.set_spout("in", InputSpout("n long")).configure(max_spout_pending=None)
    builder.set_bolt("windows", tumbling(count(10), name="ten", output="n long")(lambda window: 1)).shuffle_grouping(
        "in"
    )
    assert builder.build().config_of("in").max_spout_pending is None


def test_custom_keys_of_a_component_override_those_of_the_topology():
    topology = topology_of(Tells, {"app.name": "mine", "app.more": "x"})
    assert {own for _, own in rows(topology)} == {"app.more=x,app.name=mine"}
    builder = TopologyBuilder("settings").configure({"app.name": "all", "app.host": "here"})
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("bolt", Tells).shuffle_grouping("in").configure({"app.name": "mine"})
    assert {own for _, own in rows(builder.build())} == {"app.host=here,app.name=mine"}


@pytest.mark.parametrize(
    "settings", [{"topology.trident.batch.emit.interval.millis": 5}, {"topology.spout.max.batch.size": 5}]
)
def test_trident_batch_settings_are_refused_in_a_plain_topology(settings):
    builder = TopologyBuilder("settings").configure(settings)
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("bolt", Tells).shuffle_grouping("in")
    with pytest.raises(TopologyError, match=f"{next(iter(settings))} .*is for a TridentTopology; leave it out"):
        builder.build()


OTHER = {
    "topology.acker.executors": 2,
    "windowing.acker.rotation": 3,
    "topology.tick.tuple.freq.secs": 1,
    "topology.state.checkpoint.interval.ms": 500,
    "topology.state.provider": "memory",
    "topology.sleep.spout.wait.strategy.time.ms": 5,
    "topology.debug": True,
}
IN_TRIDENT = {
    "topology.message.timeout.secs": 5,
    "topology.enable.message.timeouts": False,
    "topology.max.spout.pending": 2,
    "windowing.max.attempts": 2,
    "windowing.retry.delay.ms": 1,
    "windowing.retry.delay.max.ms": 1001,
    "topology.max.task.parallelism": 2,
    "topology.trident.batch.emit.interval.millis": 1,
    "topology.spout.max.batch.size": 7,
}


def trident_of(settings):
    topology = TridentTopology("settings").configure(settings)
    topology.new_stream("in", FixedBatchSpout("n long", 1, [(1,)])).sink("out")
    return topology


@pytest.mark.parametrize("key", OTHER)
def test_a_setting_without_meaning_in_trident_is_refused(key):
    with pytest.raises(TopologyError, match=f"{key} .*has no meaning in a Trident topology; leave it out"):
        trident_of({key: OTHER[key]}).build()


def test_every_setting_has_a_meaning_in_trident_or_is_refused_there():
    assert {key.storm for key in KEYS} == {*OTHER, *IN_TRIDENT}
    trident_of(IN_TRIDENT).build()


def test_max_spout_pending_for_a_spout_of_whole_batches_is_refused():
    builder = TopologyBuilder("settings")
    builder.set_spout("in", InputSpout("n long")).configure(max_spout_pending=1)
    builder.set_bolt("bolt", Tells).shuffle_grouping("in")
    topology = builder.build()
    with pytest.raises(
        ConfigError, match=r"InputSpout 'in' says max_spout_pending=1, .* a batch comes whole; leave it out"
    ):
        run_topology(topology, {"in": [[(1,), (2,)]]}, clock=VirtualClock())
    with LocalCluster(topology, clock=VirtualClock()) as cluster:
        cluster.run_batch({"in": [(1,), (2,)]})
        assert cluster.run().acked == 2


def test_settings_of_a_single_spout_are_refused_in_trident():
    class Asking(FixedBatchSpout):
        def get_component_configuration(self):
            return {"app.host": "here"}

    @spout(output="n long")
    class AskingToo(Spout):
        def get_component_configuration(self):
            return {"app.host": "here"}

        def next_tuple(self):
            """Nothing."""

    for asking in (Asking("n long", 1, [(1,)]), AskingToo):
        topology = TridentTopology("settings")
        topology.new_stream("in", asking).sink("out")
        with pytest.raises(
            TopologyError, match=r"its get_component_configuration says app\.host, but a stream of Trident"
        ):
            topology.build()
