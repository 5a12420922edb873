"""WindowConfig.of: which declarations are accepted, which are refused, and the error sentences."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError
from windowing.schema.types import Schema
from windowing.windows import aggregate as agg
from windowing.windows.config import Lateness, OnError, Semantics, SkippedTuplesWarning, WindowConfig
from windowing.windows.measures import Count, Duration, days, hours, millis, minutes, seconds
from windowing.windows.trigger import TriggerPolicy


class _Keep:
    def evict(self, event: Any) -> None: ...

    def track(self, event: Any) -> None: ...


def refused(*words: str, **declared: Any) -> str:
    """Declare an invalid window and return the error sentence, which must contain all `words`."""
    with pytest.raises(ConfigError) as caught:
        WindowConfig.of(**declared)
    sentence = str(caught.value)
    for word in words:
        assert word in sentence
    assert sentence.startswith("[CONFIG] ")
    assert "\n" not in sentence
    return sentence


def test_a_count_window_over_the_clock_needs_only_a_length() -> None:
    config = WindowConfig.of(length=Count(3))
    assert (config.length, config.slide, config.event_time) == (Count(3), Count(1), False)
    assert config == WindowConfig(length=Count(3), slide=Count(1))


def test_every_option_is_stored_in_its_field() -> None:
    config = WindowConfig.of(
        length=hours(1),
        slide=Count(20),
        timestamp="departure",
        lag=timedelta(hours=6),
        watermark_interval=seconds(2),
        late_stream="late",
        source="partition",
        idle_timeout=minutes(1),
        max_future=timedelta(days=1),
        key=["origin", "carrier"],
        key_ttl=hours(9),
        on_error="dead_letter",
        on_invalid="raise",
        semantics="lossless",
        aggregate={"flights": agg.count()},
    )
    assert config == WindowConfig(
        length=Duration(ms=3_600_000),
        slide=Count(20),
        timestamp="departure",
        lag_ms=21_600_000,
        watermark_interval_ms=2000,
        late_stream="late",
        source="partition",
        idle_timeout_ms=60_000,
        max_future_ms=86_400_000,
        key=("origin", "carrier"),
        key_ttl_ms=32_400_000,
        on_error=OnError.DEAD_LETTER,
        on_invalid="raise",
        semantics=Semantics.LOSSLESS,
        aggregate={"flights": agg.count()},
    )


def test_all_four_mixes_of_counts_and_durations_are_accepted() -> None:
    for length in (Count(2), seconds(2)):
        for slide in (Count(1), seconds(1)):
            config = WindowConfig.of(length=length, slide=slide)
            assert (config.length, config.slide) == (length, slide)


def test_an_option_given_as_none_equals_an_omitted_option() -> None:
    assert WindowConfig.of(length=Count(3), lag=None, late_stream=None, key=None) == WindowConfig.of(length=Count(3))


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_timedelta_equals_a_duration_of_the_same_milliseconds(length: int, slide: int) -> None:
    length, slide = max(length, slide), max(min(length, slide), -(-max(length, slide) // 10_000))
    written = WindowConfig.of(length=timedelta(milliseconds=length), slide=timedelta(milliseconds=slide))
    assert written == WindowConfig.of(length=Duration(length), slide=Duration(slide))


UNITS = {millis: 1, seconds: 1000, minutes: 60_000, hours: 3_600_000, days: 86_400_000}


@given(st.sampled_from(list(UNITS)), st.integers(0, 10**15))
def test_every_whole_number_of_milliseconds_can_be_written_in_every_unit(unit: Any, ms: int) -> None:
    assert unit(ms / UNITS[unit]) == Duration(ms)


@given(st.sampled_from(list(UNITS)), st.integers(0, 10**9), st.floats(0.01, 0.99))
def test_fractions_of_a_millisecond_are_refused_in_every_unit(unit: Any, ms: int, part: float) -> None:
    with pytest.raises(ConfigError, match="no whole number of milliseconds"):
        unit((ms + part) / UNITS[unit])


def test_a_span_takes_a_finite_number() -> None:
    assert (seconds(1.001), seconds(0.1), minutes(1 / 3)) == (Duration(1001), Duration(100), Duration(20_000))
    for amount in (float("nan"), float("inf"), -float("inf"), 1e-320, 1.0001):
        with pytest.raises(ConfigError, match="no whole number of milliseconds"):
            seconds(amount)
    with pytest.raises(ConfigError, match=r"minutes\(\) takes a number"):
        minutes("5")  # type: ignore[arg-type]


def test_a_length_or_slide_that_is_not_positive_is_refused() -> None:
    refused("length must be positive", "Duration(0)", length=Duration(0))
    refused("slide must be positive", "tumbling(", length=seconds(5), slide=timedelta(0))
    refused("cannot be negative", length=seconds(5), slide=timedelta(seconds=-1))
    refused("length is given in tuples or in time", "got 100", "count(100)", length=100)
    refused("needs a length", "length=count(100)")


def test_event_time_options_are_refused_without_a_timestamp() -> None:
    options: dict[str, Any] = {
        "late_stream": "late",
        "lag": seconds(0),
        "watermark_interval": seconds(1),
        "source": "partition",
        "idle_timeout": seconds(1),
        "max_future": seconds(1),
        "lateness": "watermark",
        "on_invalid": "late",
    }
    for option, value in options.items():
        refused(
            f"{option}=", "needs timestamp=", "add timestamp=", length=seconds(5), slide=seconds(5), **{option: value}
        )


def test_a_timestamp_must_be_a_field_or_a_function() -> None:
    assert WindowConfig.of(length=Count(1), timestamp=len).timestamp is len
    refused("timestamp is a field's name or a function", "got 3", length=Count(1), timestamp=3)
    refused("timestamp is a field's name or a function", length=Count(1), timestamp=" ")


def test_spans_that_must_be_positive_are_refused_when_zero() -> None:
    for option in ("watermark_interval", "idle_timeout"):
        refused(f"{option} must be positive", length=seconds(5), timestamp="ts", **{option: seconds(0)})
    refused("key_ttl must be positive", length=Count(5), key="k", key_ttl=seconds(0))
    refused("lag is a span of time", "got 5", length=seconds(5), timestamp="ts", lag=5)
    refused("lag cannot be negative", length=seconds(5), timestamp="ts", lag=timedelta(seconds=-5))


def test_a_late_stream_needs_a_name_of_its_own() -> None:
    refused("late_stream='default'", "another name", length=Count(1), timestamp="ts", late_stream="default")
    for name in ("../x", "", "1st", "a" * 64, "late\n", "läte", 7):
        refused("late_stream must be a name", length=Count(1), timestamp="ts", late_stream=name)
    assert WindowConfig.of(length=Count(1), timestamp="ts", late_stream="a" * 63).late_stream == "a" * 63


def test_lateness_by_window_requires_two_durations() -> None:
    config = WindowConfig.of(length=seconds(4), slide=seconds(2), timestamp="ts", lateness="window")
    assert config.lateness is Lateness.WINDOW
    for length, slide in ((Count(4), Count(2)), (Count(4), seconds(2)), (seconds(4), Count(2))):
        refused("must both be Durations", length=length, slide=slide, timestamp="ts", lateness="window")


def test_repeats_require_a_count_length_with_a_duration_slide() -> None:
    assert WindowConfig.of(length=Count(4), slide=seconds(1), repeat=True, max_repeats=5).max_repeats == 5
    assert WindowConfig.of(length=Count(4), slide=Count(1), repeat=False).repeat is False
    refused("repeat=True is for a Count length", length=seconds(4), slide=seconds(1), repeat=True)
    refused("repeat is True or False", length=Count(4), slide=seconds(1), repeat="yes")
    refused("max_repeats is a positive", length=Count(4), slide=seconds(1), repeat=True, max_repeats=0)
    refused("nothing repeats here", "add repeat=True", length=Count(4), slide=seconds(1), max_repeats=5)


def test_a_key_is_one_field_or_several() -> None:
    assert WindowConfig.of(length=Count(1), key="origin").key == ("origin",)
    assert WindowConfig.of(length=Count(1), key=("a", "b")).key == ("a", "b")
    refused("names a field twice", length=Count(1), key=["a", "a"])
    for key in ([], "", [""], [1], 3, {"a"}):
        refused("key is a field's name or a list", length=Count(1), key=key)


def test_key_ttl_is_only_for_windows_that_would_keep_a_key_forever() -> None:
    refused("needs key=", length=Count(1), key_ttl=seconds(1))
    refused("leave it out", length=seconds(2), slide=seconds(1), key="k", key_ttl=seconds(1))
    assert WindowConfig.of(eviction=_Keep, slide=seconds(1), key="k", key_ttl=seconds(1)).key_ttl_ms == 1000
    assert WindowConfig.of(length=seconds(2), slide=Count(1), key="k", key_ttl=seconds(1)).key_ttl_ms == 1000


def test_an_offset_outside_of_the_slide_is_refused_with_the_equivalent_one() -> None:
    assert WindowConfig.of(length=seconds(4), slide=seconds(2), offset=Duration(1999)).offset_ms == 1999
    assert WindowConfig.of(length=seconds(4), slide=seconds(2), offset=seconds(0)).offset_ms == 0
    refused("offset=Duration(ms=1000)", length=seconds(4), slide=seconds(2), offset=seconds(3))
    refused("offset=Duration(ms=0)", length=seconds(4), slide=seconds(2), offset=seconds(2))
    refused(repr(timedelta(seconds=1)), length=seconds(4), slide=seconds(2), offset=timedelta(seconds=-1))
    refused("shifts the ends of a Duration slide", length=seconds(4), slide=Count(2), offset=seconds(1))


def test_max_events_in_memory_is_refused_for_windows_that_scan_all_their_tuples() -> None:
    option: dict[str, Any] = {"length": Count(5), "max_events_in_memory": 50_000}
    assert WindowConfig.of(**option).max_events_in_memory == 50_000
    assert WindowConfig.of(length=Count(5)).max_events_in_memory is None
    for few in (999, 0, -1, True, 1e6, "many"):
        refused("at least 1000", "50_000", length=Count(5), max_events_in_memory=few)
    cannot = "max_events_in_memory=50000 cannot go with "
    refused(cannot + "aggregate=", "leave out one", **option, aggregate=agg.count())
    refused(cannot + "eviction=", **option, eviction=_Keep)
    refused(cannot + "trigger=", **option, trigger=_Keep)
    refused(cannot + "semantics='storm'", **option, semantics="storm")
    refused(cannot + "on_error='fail'", **option, on_error="fail")
    refused(cannot + "on_error=<OnError.DEAD_LETTER", **option, on_error=OnError.DEAD_LETTER)


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    refused("unknown option 'lenght'", "did you mean 'length'?", lenght=Count(1))
    refused("unknown option 'late_strem'", "did you mean 'late_stream'?", length=Count(1), late_strem="x")
    refused("unknown option 'zzz'", "there are aggregate, columnar, eviction, ", length=Count(1), zzz=None)


def test_an_unknown_choice_is_refused_with_the_choices() -> None:
    refused("'lossless', 'storm'", "did you mean 'storm'?", length=Count(1), semantics="strom")
    refused("'raise', 'fail', 'skip', 'dead_letter'", length=Count(1), on_error="ignore")
    refused("'watermark', 'window'", length=Count(1), timestamp="ts", lateness=3)
    refused("on_invalid is 'late' or 'raise'", length=Count(1), timestamp="ts", on_invalid="skip")
    assert WindowConfig.of(length=Count(1), on_error=OnError.SKIP).on_error is OnError.SKIP


def test_a_trigger_replaces_the_slide_and_an_eviction_filters_the_length() -> None:
    refused("slide= would say nothing", "got slide=Count(5)", length=Count(5), slide=Count(5), trigger=_Keep)
    refused(
        "offset= would say nothing", "got offset=Duration(ms=5)", length=Count(5), offset=Duration(5), trigger=_Keep
    )
    refused("repeat= would say nothing", "got repeat=True", length=Count(5), repeat=True, trigger=_Keep, timestamp="at")
    refused("one eviction policy", "leave out one", length=Count(5), semantics="storm", eviction=_Keep)
    assert WindowConfig.of(length=Count(5), slide=Count(5), eviction=_Keep).length == Count(5)
    with pytest.warns(SkippedTuplesWarning):
        WindowConfig.of(length=Count(5), slide=Count(7), eviction=_Keep)
    refused("more than 10000", length=hours(24), slide=Duration(1), eviction=_Keep)


def test_lateness_by_window_is_refused_with_custom_policies() -> None:
    time: dict[str, Any] = {"length": seconds(5), "timestamp": "ts", "lateness": "window"}
    refused("a policy of your own cannot say", "leave out lateness=", **time, slide=seconds(5), eviction=_Keep)
    refused("a policy of your own cannot say", "leave out lateness=", **time, trigger=_Keep)


def test_an_invalid_config_is_refused_by_every_constructor() -> None:
    for length, slide, word in ((Duration(0), Count(1), "length must"), (Count(1), Duration(0), "slide must")):
        with pytest.raises(ConfigError, match=word):
            WindowConfig(length=length, slide=slide)
    with pytest.raises(ConfigError, match="needs a length"):
        WindowConfig(length=None, slide=Count(1))
    with pytest.raises(ConfigError, match="length is given in tuples or in time"):
        WindowConfig(length=5, slide=Count(1))  # type: ignore[arg-type]


def test_storm_semantics_refuse_options_that_storm_lacks() -> None:
    options: dict[str, Any] = {
        "offset": seconds(0),
        "lateness": "window",
        "source": "partition",
        "idle_timeout": seconds(1),
        "max_future": seconds(1),
        "key": "origin",
        "aggregate": agg.count(),
    }
    window: dict[str, Any] = {"length": seconds(4), "slide": seconds(2), "timestamp": "ts", "semantics": "storm"}
    for option, value in options.items():
        refused(f"Storm has no {option}", f"leave out {option}=", **window, **{option: value})
    refused("Storm has no key_ttl", length=Count(1), semantics="storm", key_ttl=seconds(1))
    WindowConfig.of(**window, lag=seconds(1), late_stream="late", lateness="watermark", on_error="fail")


def test_storm_semantics_imply_repeat_and_refuse_repeat_false() -> None:
    window: dict[str, Any] = {"length": Count(4), "slide": seconds(1), "semantics": "storm"}
    assert WindowConfig.of(**window).repeat is True
    assert WindowConfig.of(**window) == WindowConfig.of(**window, repeat=True)
    assert WindowConfig.of(**window, max_repeats=7).max_repeats == 7
    refused("got repeat=False", **window, repeat=False)


def test_an_aggregate_is_one_aggregator_or_several_by_name() -> None:
    assert WindowConfig.of(length=Count(1), aggregate=agg.count()).aggregate == agg.count()
    refused("must be an aggregator", length=Count(1), aggregate=sum)
    refused("must be an aggregator", length=Count(1), aggregate={"n": agg.Counted})
    refused("names nothing to compute", length=Count(1), aggregate={})
    refused("a name in aggregate must be a name", length=Count(1), aggregate={"a b": agg.count()})
    refused("keeps no tuples", length=Count(1), aggregate=agg.count(), eviction=_Keep)


def test_a_custom_policy_is_given_as_its_factory() -> None:
    assert WindowConfig.of(eviction=_Keep).length is None
    assert WindowConfig.of(length=Count(1), trigger=_Keep).trigger is _Keep
    refused("eviction is what makes the policy", "lambda: _Keep(...)", eviction=_Keep())
    refused("has no method track(self, event); write it", length=Count(1), trigger=type("Own", (), {"trak": id}))
    refused("has no method track(self, event)", length=Count(1), trigger=type("Own", (TriggerPolicy,), {}))
    refused("has no method evict(self, event); write it", eviction=type("Own", (), {"track": id}))
    assert WindowConfig.of(length=Count(1), trigger=type("Ticks", (), {"tick": id})).trigger is not None
    named_as_in_storm = type("Sum", (), {"getState": lambda self: 1})
    refused("Sum'> has getState, which nothing calls; write get_state", eviction=named_as_in_storm)
    refused(
        "has getState, which nothing calls; write get_state",
        length=Count(1),
        trigger=type("Own", (TriggerPolicy,), {"getState": id}),
    )
    with_both = type("Both", (_Keep,), {"getState": lambda self: 1, "get_state": lambda self: 1})
    assert WindowConfig.of(eviction=with_both).eviction is with_both
    refused("trigger must be callable without arguments", length=Count(1), trigger=lambda size: size)


def test_a_slide_longer_than_the_length_warns_about_the_skipped_tuples() -> None:
    with pytest.warns(SkippedTuplesWarning, match="of every 5 tuples the first 3 are skipped") as caught:
        WindowConfig.of(length=Count(2), slide=Count(5))
    assert caught[0].filename == __file__
    with pytest.warns(SkippedTuplesWarning, match=re.escape("of every 5000 ms the tuples of the first 3000 ms")):
        WindowConfig.of(length=seconds(2), slide=seconds(5))


def test_a_time_window_with_too_many_windows_per_tuple_is_refused() -> None:
    assert WindowConfig.of(length=seconds(10), slide=Duration(1)).slide == Duration(1)
    refused("10001 windows", "longer slide", length=Duration(10_001), slide=Duration(1))
    refused("10001 windows", length=Duration(20_001), slide=Duration(2))


def test_message_ids_are_refused_for_windows_that_cannot_be_recovered() -> None:
    config = WindowConfig.of(length=Count(5), message_id="id", recovery_timeout=seconds(3))
    assert (config.message_id, config.recovery_timeout_ms) == ("id", 3_000)
    refused("needs message_id=", "recovery_timeout", length=Count(5), recovery_timeout=seconds(3))
    refused("is the name of a field", "message_id", length=Count(5), message_id=7)
    cannot = "message_id='id' cannot go with "
    refused(cannot, "leave out one", length=Count(5), message_id="id", semantics="storm")
    refused(cannot, "leave out one", length=Count(5), message_id="id", eviction=lambda: None)
    assert WindowConfig.of(length=Count(5), message_id="id", max_events_in_memory=50_000).message_id == "id"


def test_a_choice_lists_its_words_once_and_names_the_nearest() -> None:
    for word, end in [
        ("ignore", "got 'ignore'; write one of these"),
        ("raised", "got 'raised'; did you mean 'raise'?"),
        (3, "got 3; write one of these"),
    ]:
        sentence = refused(length=Count(1), on_error=word)
        assert sentence.endswith(f"on_error is one of 'raise', 'fail', 'skip', 'dead_letter', {end}")


def test_two_fields_without_a_comma_are_told_to_have_one() -> None:
    with pytest.raises(ConfigError, match="unknown type 'long m long'; write a comma between fields"):
        Schema.parse("n long m long")
    with pytest.raises(ConfigError, match="field 'n' is declared NOT NULL; every field may be None, so leave it out"):
        Schema.parse("m string, n long NOT NULL")
    with pytest.raises(ConfigError, match="unknown type 'lng m'; did you mean 'long'"):
        Schema.parse("n lng m")
