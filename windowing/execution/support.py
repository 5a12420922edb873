"""The options that have no effect in a runtime; drivers log them at their start.

Law: no option is ignored silently. tests/option_tables.py says of every option what it does in each runtime, with these reasons;
tests/test_options.py tries each cell and fails for an option without a row; docs/reference/options.md shows the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from windowing.errors import ConfigError, quote, warn
from windowing.topology.bolts import WindowedBolt, class_of, fields_set
from windowing.topology.config import KEYS, ComponentConfig, TopologyConfig, read_settings
from windowing.topology.decorators import Declaration
from windowing.topology.plan import Component
from windowing.topology.rules import own_settings
from windowing.windows.config import WindowConfig
from windowing.windows.measures import Count

_POLICY_METHODS = ("track", "tick", "evict", "due", "fired", "reset", "set_context")


class LostFieldsWarning(UserWarning):
    """A bolt, or a policy without `get_state`, assigns to its own fields, but on Spark its instance lives for one batch only."""


class Runtime(Enum):
    """The runtimes of a declaration; LOCAL is `run_local` and LocalRun."""

    LOCAL = "run_local"
    CLUSTER = "LocalCluster"
    TRIDENT = "TridentCluster"
    WINDOWED = "Spark windowed"
    SUBMIT = "Spark submit"
    SUBMIT_TRIDENT = "Spark submit_trident"


_ON_SPARK = {
    "watermark_interval": "windows advance after each micro-batch; trigger= sets how often",
    "recovery_timeout": "windows are stored with their tuples, so a restart waits for none",
}
WINDOWS_WITHOUT_EFFECT: Mapping[Runtime, Mapping[str, str]] = {
    Runtime.LOCAL: {"recovery_timeout": "a run has no restart"},
    Runtime.WINDOWED: _ON_SPARK,
    Runtime.SUBMIT: _ON_SPARK,
}
"""The options of a windowed bolt without effect, with the reason."""

_WHOLE = "a batch succeeds or is repeated as a whole, and has no timeout"
_CUT = "the trigger and the source decide how much is in flight"
_CUTS = "the trigger and the source decide the size of batches"
SETTINGS_WITHOUT_EFFECT: Mapping[Runtime, Mapping[str, str]] = {
    Runtime.SUBMIT: {
        "message_timeout": _WHOLE,
        "max_spout_pending": _CUT,
        "acker_rotation": "only whole batches are acked",
        "state_checkpoint_interval": "states are committed with each batch",
        "state_provider": "states are in Spark's state store, in the checkpoint",
        "sleep_spout_wait": "Spark itself waits for its sources",
        "debug": "only LocalCluster logs each tuple",
    },
    Runtime.SUBMIT_TRIDENT: {
        "message_timeout": _WHOLE,
        "max_spout_pending": _CUT,
        "batch_emit_interval": _CUTS,
        "max_batch_size": _CUTS,
    },
}
"""The settings of a topology without effect, by typed name, with the reason."""

COORDINATED = ("max_spout_pending", "batch_emit_interval", "max_attempts", "retry_delay", "retry_delay_max")
"""The settings of a Trident topology that `coordination=` replaces."""

SPOUT_TASKS_ON_SPARK = (
    "Spark reads a source in its own partitions; tuples of partition p have the task number p % parallelism"
)
"""Why the parallelism of a spout has no effect in `submit`."""


def settings_without_effect(
    runtime: Runtime, config: TopologyConfig, components: Iterable[Component] = (), *, coordinated: bool = False
) -> Iterator[str]:
    """Yield a sentence for each setting of a topology or a component that differs from its default and has no effect in a runtime.
    coordinated: it is started with `coordination=`.
    """
    reasons = dict(SETTINGS_WITHOUT_EFFECT.get(runtime, {}))
    if coordinated:
        reasons |= dict.fromkeys(COORDINATED, "coordination= is given and replaces it")
    usual, every = TopologyConfig(), frozenset(key.attribute for key in KEYS)
    scopes: list[tuple[str, TopologyConfig | ComponentConfig, frozenset[str]]] = [("", config, every)]
    scopes += [(f" of {each.id!r}", each.config, each.config.given) for each in components]
    for of, settings, given in scopes:
        for key in KEYS:
            if key.typed not in reasons or key.attribute not in given:
                continue
            if getattr(settings, key.attribute) != getattr(usual, key.attribute):
                yield f"{key.storm}{of} has no effect in {runtime.value}: {reasons[key.typed]}"


def tasks_without_effect(runtime: Runtime, components: Iterable[Component]) -> Iterator[str]:
    """Yield a sentence for each component whose number of tasks is given but has no effect in a runtime."""
    for component in components:
        if runtime is Runtime.SUBMIT and component.is_spout and component.parallelism != 1:
            yield (
                f"parallelism={component.parallelism} of {component.id!r} has no effect in {runtime.value}: "
                f"{SPOUT_TASKS_ON_SPARK}"
            )


def windows_without_effect(runtime: Runtime, bolt: WindowedBolt) -> Iterator[str]:
    """Yield a sentence for each option of a windowed bolt that is given but has no effect in a runtime."""
    usual = WindowConfig(length=Count(1), slide=Count(1))
    for option, reason in WINDOWS_WITHOUT_EFFECT.get(runtime, {}).items():
        if getattr(bolt.config, f"{option}_ms") != getattr(usual, f"{option}_ms"):
            yield f"{option}= of bolt {bolt.name!r} has no effect in {runtime.value}: {reason}"


def announce(
    runtime: Runtime,
    log: Callable[..., object],
    name: str,
    config: TopologyConfig,
    components: Iterable[Component] = (),
    *,
    coordinated: bool = False,
) -> None:
    """Log the options of a topology without effect in a runtime, and warn of fields that are lost; called once, at the start.

    log: takes a format and its arguments, like the methods of a logger. coordinated: it is started with `coordination=`.
    """
    known = list(components)
    sentences = list(settings_without_effect(runtime, config, known, coordinated=coordinated))
    sentences += tasks_without_effect(runtime, known)
    for component in known:
        if component.window is not None:
            sentences += windows_without_effect(runtime, component.window)
        if runtime is Runtime.SUBMIT and not component.is_spout:
            _warn_of_lost_fields(component.id, component.declaration, component.stateful, component.window)
    for sentence in sentences:
        log("topology %r: %s", name, sentence)


def announce_bolt(runtime: Runtime, log: Callable[..., object], bolt: WindowedBolt) -> None:
    """Log the same for a windowed bolt that runs alone. Raises ConfigError for one that requests tick tuples."""
    for sentence in (*windows_without_effect(runtime, bolt), *_own_without_effect(bolt)):
        log("%s", sentence)
    if runtime is Runtime.WINDOWED:
        _warn_of_lost_fields(bolt.name, bolt, bolt.stateful, bolt)


def _own_without_effect(bolt: WindowedBolt) -> Iterator[str]:
    """Yield a sentence for each setting of a bolt itself, because settings have an effect only in a topology."""
    settings = own_settings(bolt)
    values, _ = read_settings(settings.items(), "bolt")
    if ComponentConfig.of(values).tick_tuple_freq_ms is not None:
        raise ConfigError(
            f"bolt {bolt.name!r} asks for ticks (topology.tick.tuple.freq.secs), but it is handed windows, and a tick is a tuple; "
            "leave it out: a window over the clock fires in time by itself"
        )
    for name in settings:
        yield (
            f"bolt {bolt.name!r} sets {quote(name)} (get_component_configuration), which has no effect here: the bolt runs alone, "
            "and a setting is one of a component of a topology"
        )


def _warn_of_lost_fields(
    title: str, declared: Declaration | WindowedBolt, stateful: bool, windows: WindowedBolt | None
) -> None:
    lost = [lost_fields(title, declared.target if declared.is_class else None, stateful)]
    if windows is not None:
        lost += [lost_policy(windows.name, name, getattr(windows.config, name)) for name in ("trigger", "eviction")]
    for sentence in filter(None, lost):
        warn(sentence, LostFieldsWarning)


def lost_fields(title: str, target: Any, stateful: bool) -> str | None:
    """Return the sentence about a bolt whose fields are lost on Spark, None if none are."""
    of_class = None if stateful else class_of(target)
    fields = [] if of_class is None else fields_set(of_class)
    if not fields:
        return None
    named = ", ".join(f"self.{name}" for name in fields)
    return (
        f"bolt {title!r} sets {named} in execute, and on Spark an instance lives for one batch: the next one begins without; "
        "keep what is to last in a state (init_state(self, state), then state.put(key, value)), and silence LostFieldsWarning "
        "where it need not last"
    )


def lost_policy(title: str, option: str, factory: Any) -> str | None:
    """Return the sentence about a policy whose fields are lost on Spark because its class has no `get_state`, None if none are."""
    of_class = class_of(factory)
    if of_class is None or _is_users(of_class, "get_state"):
        return None
    fields = fields_set(of_class, [name for name in _POLICY_METHODS if _is_users(of_class, name)])
    if not fields:
        return None
    named = ", ".join(f"self.{name}" for name in fields)
    return (
        f"{option}={of_class.__name__} of bolt {title!r} sets {named}, and on Spark a policy lives for one batch: "
        "the next one begins without; return it from get_state(self) and set it in restore_state(self, state)"
    )


def _is_users(of_class: type[Any], method: str) -> bool:
    """Return whether a class has a method that is not one of this library's own policies."""
    found = getattr(of_class, method, None)
    return found is not None and not str(getattr(found, "__module__", "")).startswith("windowing.windows.")
