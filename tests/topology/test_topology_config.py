"""Settings by Storm's keys and by typed names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from windowing.errors import ConfigError
from windowing.topology.config import KEYS, ComponentConfig, TopologyConfig, read_settings, settings_of
from windowing.windows.measures import millis, seconds


def wrong(place: str, **settings: Any) -> list[str]:
    return read_settings([(name.replace("__", "."), value) for name, value in settings.items()], place)[1]


def test_the_defaults_are_those_of_storm_except_for_the_batch_interval() -> None:
    defaults = {
        "topology.message.timeout.secs": 30,
        "topology.enable.message.timeouts": True,
        "topology.max.spout.pending": None,
        "topology.acker.executors": 1,
        "windowing.acker.rotation": None,
        "windowing.max.attempts": 5,
        "windowing.retry.delay.ms": 1000,
        "windowing.retry.delay.max.ms": 60_000,
        "topology.tick.tuple.freq.secs": None,
        "topology.state.checkpoint.interval.ms": 1000,
        "topology.max.task.parallelism": None,
        "topology.sleep.spout.wait.strategy.time.ms": 1,
        "topology.trident.batch.emit.interval.millis": 0,
        "topology.spout.max.batch.size": 1000,
        "topology.debug": False,
    }
    assert {key.storm for key in KEYS} == defaults.keys() | {"topology.state.provider"}
    assert TopologyConfig.of(defaults) == TopologyConfig()


def test_a_key_and_its_typed_name_are_equivalent() -> None:
    by_key = TopologyConfig.of({"topology.message.timeout.secs": 1.5, "topology.tick.tuple.freq.secs": 0.001})
    by_name = TopologyConfig.of(message_timeout=timedelta(seconds=1.5), tick_tuple_freq=millis(1))
    assert by_key == by_name
    assert (by_key.message_timeout_ms, by_key.tick_tuple_freq_ms) == (1500, 1)


def test_every_key_occurs_once_in_the_table_and_has_an_attribute() -> None:
    names = [name for key in KEYS for name in {key.storm, key.typed}]
    assert len(set(names)) == len(names)
    for key in KEYS:
        config = TopologyConfig()
        assert hasattr(config, key.attribute)
        if key.scopes != ("topology",):
            assert hasattr(ComponentConfig(), key.attribute)


def test_timeouts_require_an_acker() -> None:
    assert TopologyConfig().timeouts
    assert not TopologyConfig(enable_message_timeouts=False).timeouts
    assert not TopologyConfig(acker_executors=0).timeouts


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    (sentence,) = wrong("topology", topology__max__spout__pendin=3)
    assert "did you mean 'topology.max.spout.pending'?" in sentence
    (sentence,) = wrong("topology", topology__workerz=5)
    assert "did you mean 'topology.workers'? (a key of your own begins with a word of yours: 'app.host')" in sentence
    (sentence,) = wrong("topology", max_spout_pendin=3)
    assert "did you mean 'max_spout_pending'?" in sentence
    assert "a key of your own needs a dot" in sentence
    (sentence,) = wrong("topology", config={"topology.workers": 5})
    assert "unknown key 'config', a mapping; if these are the settings, write configure(file['config'])" in sentence
    (sentence,) = read_settings(settings_of("topology.workers", {}, (3,)), "topology")[1]
    assert sentence.startswith("configure takes a mapping of settings, got ('topology.workers', 3); write configure({")
    for name, meant in (
        ("topolgy.message.timeout.secs", "topology.message.timeout.secs"),
        ("Topology.workers", "topology.workers"),
        ("Windowing.max.attempts", "windowing.max.attempts"),
    ):
        (sentence,) = read_settings([(name, 3)], "topology")[1]
        assert f"unknown key '{name}'; did you mean '{meant}'?" in sentence
    own = ["app.host", "workers.max", "storms.x", "window.size", "topo.debug", "ui.color", "worker.threads"]
    assert read_settings([(name, 3) for name in own], "topology") == ({"own": dict.fromkeys(own, 3)}, [])


def test_a_key_of_storm_without_a_meaning_here_is_refused_with_the_reason() -> None:
    (sentence,) = wrong("topology", topology__tasks=3)
    assert sentence.startswith("topology.tasks has no meaning here: the number of tasks is the parallelism=")
    (sentence,) = wrong("bolt", topology__bolts__window__length__count=3)
    assert "@windowed_bolt" in sentence


def test_a_custom_key_must_have_plain_data() -> None:
    assert TopologyConfig.of({"redis.hosts": {"a": [1, None]}}).own == {"redis.hosts": {"a": [1, None]}}
    (sentence,) = wrong("topology", redis__host=object())
    assert "is plain data" in sentence
    assert read_settings([(3, 4)], "topology")[1] == [  # type: ignore[list-item]
        "a key is a text such as 'topology.max.spout.pending', got 3; write one"
    ]


def test_a_key_is_refused_for_a_component_or_topology_that_it_does_not_apply_to() -> None:
    assert wrong("spout", max_spout_pending=3) == []
    assert wrong("bolt", tick_tuple_freq=seconds(1)) == []
    (sentence,) = wrong("bolt", max_spout_pending=3)
    assert sentence == "max_spout_pending is for a spout, not for a bolt; leave it out here"
    (sentence,) = wrong("bolt", message_timeout=seconds(1))
    assert "give it to TopologyBuilder.configure" in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topology.message.timeout.secs", 0),
        ("topology.message.timeout.secs", True),
        ("topology.message.timeout.secs", "30"),
        ("topology.message.timeout.secs", float("nan")),
        ("topology.message.timeout.secs", 0.0001),
        ("topology.message.timeout.secs", None),
        ("message_timeout", 30),
        ("message_timeout", timedelta(0)),
        ("topology.max.spout.pending", 0),
        ("topology.acker.executors", -1),
        ("topology.enable.message.timeouts", 1),
        ("topology.state.checkpoint.interval.ms", 99),
        ("state_checkpoint_interval", millis(99)),
        ("topology.state.provider", "org.apache.storm.state.InMemoryKeyValueStateProvider"),
    ],
)
def test_a_wrong_value_is_refused_with_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is .*, got "):
        TopologyConfig.of({name: value})


def test_the_last_setting_of_a_key_applies() -> None:
    values, problems = read_settings([("max_spout_pending", 1), ("topology.max.spout.pending", 2)], "topology")
    assert (values["max_spout_pending"], problems) == (2, [])


def test_all_wrong_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError, match=r"debug is .*; .*acker_executors is "):
        TopologyConfig.of(debug=1, acker_executors=-1)
