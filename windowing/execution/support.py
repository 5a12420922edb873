"""The effect of each option of windows and each setting in each runtime, as tables; drivers log by them.

    WORKS              it has the documented effect
    Refused(sentence)  an error with this sentence, before anything runs
    Without(reason)    it has no effect there; a driver that gets it logs that once, at its start

Law: no option is ignored silently. tests/test_options.py fails for an option without a row. tests/option_tables.py has the tables
that no driver reads: decorators, groupings, Trident's operations, the arguments of each start. docs/reference/options.md shows all.
An argument without a cell does not exist in that runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from windowing.errors import ConfigError, quote, warn
from windowing.topology.bolts import Declaration, WindowedBolt, class_of, fields_set
from windowing.topology.config import (
    IN_TRIDENT,
    KEYS,
    OUTSIDE_TRIDENT,
    ComponentConfig,
    Key,
    TopologyConfig,
    read_settings,
)
from windowing.topology.plan import Component
from windowing.topology.rules import NO_TICKS_OF_WINDOWS, own_settings
from windowing.windows.config import WINDOWS_OUTSIDE_TRIDENT, WindowConfig
from windowing.windows.measures import Count

_POLICY_METHODS = ("track", "tick", "evict", "due", "fired", "reset", "set_context")


class LostFieldsWarning(UserWarning):
    """A bolt, a function of Trident, or a policy without `get_state` and `restore_state`, assigns to its own fields, but on Spark
    its instance lives for one batch only.
    """


class Runtime(Enum):
    """The runtimes of a declaration; LOCAL is `run_local` and LocalRun."""

    LOCAL = "run_local"
    CLUSTER = "LocalCluster"
    TRIDENT = "TridentCluster"
    WINDOWED = "Spark windowed"
    SUBMIT = "Spark submit"
    SUBMIT_TRIDENT = "Spark submit_trident"


class Refused(NamedTuple):
    """An error that contains `sentence`."""

    sentence: str


class Without(NamedTuple):
    """No effect, with the reason."""

    reason: str


WORKS = "works"
Cell = str | Refused | Without

_EVERYWHERE: tuple[Cell, ...] = (WORKS, WORKS, WORKS, WORKS)
_TRIDENT = (Runtime.TRIDENT, Runtime.SUBMIT_TRIDENT)
_BY_BATCH = Without("windows advance after each micro-batch; trigger= sets how often")
_STORED = Without("windows are stored with their tuples, so a restart waits for none")
_NO_SPOUT = Refused("on_error='fail', which fails tuples back to their spout, and none of its spouts takes acks")
_ALONE = Refused("here it runs alone, so no task reads it")
_IN_STORE = Refused("on Spark a turn has all live tuples of its task in memory")

_WINDOWS: dict[str, tuple[Cell, ...]] = {
    **dict.fromkeys(
        (
            *("length", "slide", "output", "name", "timestamp", "lag", "late_stream", "offset", "lateness", "repeat"),
            *("max_repeats", "source", "idle_timeout", "max_future", "key", "key_ttl", "on_invalid"),
            *("semantics", "aggregate", "eviction", "trigger", "columnar"),
        ),
        _EVERYWHERE,
    ),
    "direct": (_ALONE, WORKS, _ALONE, WORKS),
    "watermark_interval": (WORKS, WORKS, _BY_BATCH, _BY_BATCH),
    "on_error": (WORKS, WORKS, _NO_SPOUT, WORKS),
    "max_events_in_memory": (WORKS, WORKS, _IN_STORE, _IN_STORE),
    "message_id": _EVERYWHERE,
    "recovery_timeout": (Without("a run has no restart"), WORKS, _STORED, _STORED),
}
_WINDOWS_RUN_IN = (Runtime.LOCAL, Runtime.CLUSTER, Runtime.WINDOWED, Runtime.SUBMIT)

_OF_BOLTS = {option: Refused(why) for option, why in WINDOWS_OUTSIDE_TRIDENT.items()}
_ELSEWHERE = ("output", "direct", "name")
"""The options that a Trident window has not, or in another form: `output` is an argument of its own, `.name()` gives the name."""

WINDOW_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    option: {
        **dict(zip(_WINDOWS_RUN_IN, cells, strict=True)),
        **({} if option in _ELSEWHERE else dict.fromkeys(_TRIDENT, _OF_BOLTS.get(option, WORKS))),
    }
    for option, cells in _WINDOWS.items()
}
"""The options of @windowed_bolt, @tumbling and @sliding, and of `window` in Trident."""

_CUT = Without("the trigger and the source decide how much is in flight")
_WHOLE = Without("a batch succeeds or is repeated as a whole, and has no timeout")
_NO_ACKER = Without("only whole batches are acked")
_CHECKPOINTS = Without("states are committed with each batch")
_SPARK_STORE = Without("states are in Spark's state store, in the checkpoint")
_SPARK_WAITS = Without("Spark itself waits for its sources")
_SPARK_CUTS = Without("the trigger and the source decide the size of batches")
_NO_TICKS = Refused("asks for tick tuples, which a Spark query does not send")
_NO_LOG = Without("only LocalCluster logs each tuple")

_REFUSED = None
"""A kind of topology that has no such setting; topology/config.py has the reason."""

_SETTINGS: dict[str, tuple[Cell | None, ...]] = {
    "message_timeout": (WORKS, WORKS, _WHOLE, _WHOLE),
    # Windows longer than the timeout need False (topology/rules.py), and on Spark there are no timeouts.
    "enable_message_timeouts": _EVERYWHERE,
    "max_spout_pending": (WORKS, WORKS, _CUT, _CUT),
    "acker_executors": (WORKS, _REFUSED, WORKS, _REFUSED),
    "acker_rotation": (WORKS, _REFUSED, _NO_ACKER, _REFUSED),
    "max_attempts": _EVERYWHERE,
    "retry_delay": _EVERYWHERE,
    "retry_delay_max": _EVERYWHERE,
    "tick_tuple_freq": (WORKS, _REFUSED, _NO_TICKS, _REFUSED),
    "state_checkpoint_interval": (WORKS, _REFUSED, _CHECKPOINTS, _REFUSED),
    "state_provider": (WORKS, _REFUSED, _SPARK_STORE, _REFUSED),
    "max_task_parallelism": _EVERYWHERE,
    "sleep_spout_wait": (WORKS, _REFUSED, _SPARK_WAITS, _REFUSED),
    "batch_emit_interval": (_REFUSED, WORKS, _REFUSED, _SPARK_CUTS),
    "max_batch_size": (_REFUSED, WORKS, _REFUSED, _SPARK_CUTS),
    "debug": (WORKS, _REFUSED, _NO_LOG, _REFUSED),
}
_SETTINGS_OF = (Runtime.CLUSTER, Runtime.TRIDENT, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT)


def _misplaced(key: Key, runtime: Runtime) -> Refused:
    return Refused((IN_TRIDENT if runtime in _TRIDENT else OUTSIDE_TRIDENT).sentence(key.attribute))


SETTINGS: Mapping[str, Mapping[Runtime, Cell]] = {
    key.typed: {
        runtime: _misplaced(key, runtime) if cell is _REFUSED else cell
        for runtime, cell in zip(_SETTINGS_OF, _SETTINGS[key.typed], strict=True)
    }
    for key in KEYS
}
"""The settings of a topology, by typed name."""

COORDINATED = ("max_spout_pending", "batch_emit_interval", "max_attempts", "retry_delay", "retry_delay_max")
"""The settings of a Trident topology that `coordination=` replaces."""
_BY_COORDINATION = Without("coordination= is given and replaces it")

SPOUT_PARALLELISM: Mapping[Runtime, Cell] = {
    Runtime.CLUSTER: WORKS,
    Runtime.SUBMIT: Without(
        "Spark reads a source in its own partitions; tuples of partition p have the task number p % parallelism"
    ),
}
"""The parallelism of `set_spout`."""


def settings_without_effect(
    runtime: Runtime, config: TopologyConfig, components: Iterable[Component] = (), *, coordinated: bool = False
) -> Iterator[str]:
    """Yield a sentence for each setting of a topology or a component that differs from its default and has no effect in a runtime.
    coordinated: it is started with `coordination=`.
    """
    usual, every = TopologyConfig(), frozenset(key.attribute for key in KEYS)
    scopes: list[tuple[str, TopologyConfig | ComponentConfig, frozenset[str]]] = [("", config, every)]
    scopes += [(f" of {each.id!r}", each.config, each.config.given) for each in components]
    for of, settings, given in scopes:
        for key in KEYS:
            cell = _BY_COORDINATION if coordinated and key.typed in COORDINATED else SETTINGS[key.typed][runtime]
            if key.attribute not in given or not isinstance(cell, Without):
                continue
            if getattr(settings, key.attribute) != getattr(usual, key.attribute):
                yield f"{key.storm}{of} has no effect in {runtime.value}: {cell.reason}"


def tasks_without_effect(runtime: Runtime, components: Iterable[Component]) -> Iterator[str]:
    """Yield a sentence for each component whose number of tasks is given but has no effect in a runtime."""
    cell = SPOUT_PARALLELISM.get(runtime)
    for component in components:
        if isinstance(cell, Without) and component.is_spout and component.parallelism != 1:
            yield f"parallelism={component.parallelism} of {component.id!r} has no effect in {runtime.value}: {cell.reason}"


def windows_without_effect(runtime: Runtime, bolt: WindowedBolt) -> Iterator[str]:
    """Yield a sentence for each option of a windowed bolt that is given but has no effect in a runtime."""
    usual = WindowConfig(length=Count(1), slide=Count(1))
    for option, cells in WINDOW_OPTIONS.items():
        cell = cells.get(runtime)
        attribute = option if hasattr(usual, option) else f"{option}_ms"
        if isinstance(cell, Without) and getattr(bolt.config, attribute) != getattr(usual, attribute):
            yield f"{option}= of bolt {bolt.name!r} has no effect in {runtime.value}: {cell.reason}"


def announce(
    runtime: Runtime,
    log: Callable[..., object],
    name: str,
    config: TopologyConfig,
    components: Iterable[Component] = (),
    *,
    windows: Iterable[WindowedBolt] = (),
    functions: Iterable[tuple[str, type[Any], str]] = (),
    coordinated: bool = False,
) -> None:
    """Log the options of a topology without effect in a runtime, and warn of fields that are lost; called once, at the start.

    log: takes a format and its arguments, like the methods of a logger. windows, functions: of a Trident topology, which has no
    components; functions are those whose instances live for one batch: name, class, method. coordinated: it is started with
    `coordination=`.
    """
    known = list(components)
    sentences = list(settings_without_effect(runtime, config, known, coordinated=coordinated))
    sentences += tasks_without_effect(runtime, known)
    for component in known:
        if component.window is not None:
            sentences += windows_without_effect(runtime, component.window)
        if runtime is Runtime.SUBMIT and not component.is_spout:
            _warn_of_lost_fields(component.declaration)
    for window in windows:
        _warn_of_lost_fields(window, _RETRIED if runtime is Runtime.TRIDENT else _ON_SPARK)
    for function in functions:
        _warn_of(_lost(*function, "persistent_aggregate, or a StateUpdater in partition_persist"))
    for sentence in sentences:
        log("topology %r: %s", name, sentence)


def announce_bolt(runtime: Runtime, log: Callable[..., object], bolt: WindowedBolt) -> None:
    """Log the same for a windowed bolt that runs alone. Raises ConfigError for one with a direct stream, or that requests ticks."""
    if bolt.direct:
        raise ConfigError(
            f"bolt {bolt.name!r} names the tasks of its stream {min(bolt.direct)!r} (direct=), and here it runs alone, so no task "
            "reads it; run it in a topology, or leave out direct="
        )
    for sentence in (*windows_without_effect(runtime, bolt), *_own_without_effect(bolt)):
        log("%s", sentence)
    if runtime is Runtime.WINDOWED:
        _warn_of_lost_fields(bolt)


def _own_without_effect(bolt: WindowedBolt) -> Iterator[str]:
    """Yield a sentence for each setting of a bolt itself, because settings have an effect only in a topology."""
    settings = own_settings(bolt)
    values, _ = read_settings(settings.items(), "bolt")
    if ComponentConfig.of(values).tick_tuple_freq_ms is not None:
        raise ConfigError(
            f"bolt {bolt.name!r} asks for ticks (topology.tick.tuple.freq.secs), but {NO_TICKS_OF_WINDOWS}"
        )
    for name in settings:
        yield (
            f"bolt {bolt.name!r} sets {quote(name)} (get_component_configuration), which has no effect here: the bolt runs alone, "
            "and a setting is one of a component of a topology"
        )


_ON_SPARK = "on Spark a policy lives for one batch: the next one begins without"
_RETRIED = "a batch that is tried again, or follows a restart, has new policies: they begin without"
"""When a policy of Trident in one process loses its fields."""


def _warn_of_lost_fields(declared: Declaration, when: str = _ON_SPARK) -> None:
    name, windows = declared.name, declared.window
    lost = [lost_fields(name, declared.target if declared.is_class else None, declared.stateful)]
    if windows is not None:
        options = ("trigger", "eviction")
        lost += [lost_policy(name, option, getattr(windows.config, option), when) for option in options]
    _warn_of(*lost)


def _warn_of(*sentences: str | None) -> None:
    for sentence in filter(None, sentences):
        warn(sentence, LostFieldsWarning)


def lost_fields(title: str, target: Any, stateful: bool) -> str | None:
    """Return the sentence about a bolt whose fields are lost on Spark, None if none are."""
    of_class = None if stateful else class_of(target)
    return _lost(f"bolt {title!r}", of_class, "execute", "init_state(self, state), then state.put(key, value)")


def _lost(called: str, of_class: type[Any] | None, method: str, state: str) -> str | None:
    """Return the sentence about code whose fields are lost on Spark, None if none are. state: what keeps them."""
    fields = [] if of_class is None else fields_set(of_class, [method])
    if not fields:
        return None
    named = ", ".join(f"self.{name}" for name in fields)
    return (
        f"{called} sets {named} in {method}, and on Spark an instance lives for one batch: the next one begins without; keep what "
        f"is to last in a state ({state}), and silence LostFieldsWarning where it need not last"
    )


def lost_policy(title: str, option: str, factory: Any, when: str = _ON_SPARK) -> str | None:
    """Return the sentence about a policy whose fields are lost because its class has no `get_state` or no `restore_state`, None if
    none are.
    """
    of_class = class_of(factory)
    if of_class is None or (_is_users(of_class, "get_state") and _is_users(of_class, "restore_state")):
        return None
    fields = fields_set(of_class, [name for name in _POLICY_METHODS if _is_users(of_class, name)])
    if not fields:
        return None
    named = ", ".join(f"self.{name}" for name in fields)
    return (
        f"{option}={of_class.__name__} of bolt {title!r} sets {named}, and {when}; return it from get_state(self) and set it in "
        "restore_state(self, state)"
    )


def _is_users(of_class: type[Any], method: str) -> bool:
    """Return whether a class has a method that is not one of this library's own policies."""
    found = getattr(of_class, method, None)
    return found is not None and not str(getattr(found, "__module__", "")).startswith("windowing.windows.")
