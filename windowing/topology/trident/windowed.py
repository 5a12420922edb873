"""Operations of windows: Window, and LateTuples beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from windowing.core.checks import did_you_mean
from windowing.core.config import OnError, WindowConfig, config_of
from windowing.core.measures import Count, Duration
from windowing.errors import ConfigError, shown
from windowing.topology.bolts import CallStyle, WindowedBolt
from windowing.topology.drafts import REASON
from windowing.topology.hashing import hashable
from windowing.topology.plan import _measured
from windowing.topology.schema import Schema
from windowing.topology.stamps import TIMELESS, holds_times
from windowing.topology.trident.aggregating import Part, kind_of
from windowing.topology.trident.code import code_of
from windowing.topology.trident.fields import chosen, extended, short_title
from windowing.topology.trident.grouping import AggSpec, resolve_spec
from windowing.topology.trident.operations import Check, Operation, Place
from windowing.topology.trident.processors import KeepProcessor
from windowing.topology.trident.windows import WindowFold, WindowProcessor

__all__ = ["LateTuples", "Window"]

_NOT_HERE = {
    "late_stream": "the late tuples of a Trident window are a stream: ask what window() returns for .late_stream()",
    "message_id": "batches are known by their txid, so no tuple has to be",
    "recovery_timeout": "batches are known by their txid, so no tuple is waited for",
    "max_events_in_memory": "the windows of a batch go back when its commit fails, which those on disk cannot",
    "semantics": "Storm's Trident windows differ from those of its bolts; the windows here lose nothing",
    "watermark_interval": "a turn is a batch",
}
_ON_ERROR = (OnError.RAISE, OnError.SKIP)


@dataclass(frozen=True, slots=True)
class Window(Operation):
    """An aggregator, or a function of (window), over windows of length and slide. group: the key of windows for each key.

    The function's output is declared in full; an aggregator's rows stand behind the fields of the key.
    """

    name: str
    length: Any
    slide: Any
    spec: AggSpec
    group: tuple[Any, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    committer = True
    keeps_window = True

    @property
    def title(self) -> str:
        measures = (
            _measured(each) if isinstance(each, Count | Duration) else str(each) for each in (self.length, self.slide)
        )
        return f"window {' / '.join(measures)} with {short_title(self.spec.aggregator)}"

    def resolve(self, check: Check) -> Schema | None:
        config = check.attempt(self._config)
        named = config is not None and self._named_fields(check, config)
        key = check.attempt(chosen, check.inputs[0], self.group or ())
        output = self._output(check, key)
        return output if named and key is not None else None

    def bolt(self, schema: Schema, output: Schema, late_stream: str | None = None) -> WindowedBolt:
        """Return the bolt over these windows, for tuples of `schema`: whoever runs windows runs it. late_stream: where it sends
        late tuples, for a driver whose windows have streams.
        """
        return WindowedBolt(
            name=self.name,
            config=replace(self._config(), late_stream=late_stream),
            outputs={"default": output},
            target=self._target(schema),
            style=CallStyle.ROWS,
        )

    def processor(self, node: Place) -> WindowProcessor:
        return WindowProcessor(self.bolt(node.inputs[0], node.schema), node.inputs[0])

    def _target(self, schema: Schema) -> Any:
        if kind_of(self.spec.aggregator) is None:
            return self.spec.aggregator
        part = resolve_spec(Check(self.name, (schema,), []), self.spec, schema)
        assert isinstance(part, Part)
        return WindowFold(part, schema, self.group or ())

    def _config(self) -> WindowConfig:
        for option, why in _NOT_HERE.items():
            if self.options.get(option) is not None:
                raise ConfigError(f"{option}={shown(self.options[option])} is for bolts: {why}; leave it out")
        if self.group is not None and self.options.get("key") is not None:
            raise ConfigError("key= is what group_by says already; leave it out")
        if self.options.get("key") is not None and kind_of(self.spec.aggregator) is not None:
            raise ConfigError(
                "key= is for a function of (window); an aggregator has windows for each key by group_by(...)"
            )
        key = self.options.get("key") if self.group is None else self.group
        config = config_of(self.length, self.slide, {**self.options, "key": key}, stacklevel=2)
        if config.on_error not in _ON_ERROR:
            raise ConfigError(
                f"on_error={config.on_error.value!r} is for bolts: here a batch fails whole, by a FailedException; "
                "write on_error='raise' or 'skip'"
            )
        if config.columnar is not None:
            raise ConfigError(
                f"columnar={config.columnar!r} is for bolts: here a window is rows; leave it out, window.column() gives a list"
            )
        return config

    def _named_fields(self, check: Check, config: WindowConfig) -> bool:
        """Note each field that the window names and the stream has not, or that makes no key or timestamp."""
        schema, good = check.inputs[0], True
        kinds = dict(zip(schema.names, schema.types, strict=True))
        named = [
            ("timestamp", config.timestamp),
            ("source", config.source),
            *(("key", key) for key in config.key or ()),
        ]
        for option, name in named:
            if not isinstance(name, str):
                continue
            problem = self._problem(option, name, kinds)
            if problem is not None:
                check.note(problem)
                good = False
        return good

    def _problem(self, option: str, name: str, kinds: dict[str, str]) -> str | None:
        if name not in kinds:
            return f"{option} is {shown(name)}, a field that is not there; {did_you_mean(name, kinds)}"
        if option == "timestamp" and not holds_times(kinds[name]):
            return f"timestamp is {shown(name)}, a field of type {kinds[name]}: {TIMELESS}"
        if option == "key" and (reason := hashable(kinds[name])) is not None:
            return f"key is {shown(name)}, a field that has no hash: {reason}"
        return None

    def _output(self, check: Check, key: Schema | None) -> Schema | None:
        if kind_of(self.spec.aggregator) is not None:
            part = resolve_spec(check, self.spec, check.inputs[0])
            return None if part is None or key is None else check.attempt(extended, key, part.output)
        code = check.attempt(code_of, self.spec.aggregator, "execute", "window", returns=True)
        if code is not None and code.method is not None:
            check.note(f"{shown(self.spec.aggregator)} is a bolt; give an aggregator, or a function of (window)")
            return None
        output = check.output(self.spec.output)
        return None if code is None else output


@dataclass(frozen=True, slots=True)
class LateTuples(Operation):
    """The tuples that came too late for a window, each with its reason. Its source is the window; its input, in `resolve`, what
    the window reads.
    """

    event_time: bool

    @property
    def title(self) -> str:
        return "late tuples"

    def resolve(self, check: Check) -> Schema | None:
        if not self.event_time:
            check.note("no tuple is late without a timestamp; give the window timestamp=")
            return None
        return check.attempt(extended, check.inputs[0], Schema((REASON,), ("string",)))

    def processor(self, node: Place) -> KeepProcessor:
        return KeepProcessor()
