"""WindowedBolt: a bolt as data, what it is called, which windows it sees, what it emits and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from windowing.core.aggregate import spec_of
from windowing.core.config import WindowConfig
from windowing.core.measures import Count, Measure
from windowing.core.specs import policy_spec, title_of
from windowing.topology.makers import class_of
from windowing.topology.schema import Schema

__all__ = ["CallStyle", "WindowedBolt", "title_of"]


class CallStyle(Enum):
    """How a bolt is called: it returns or yields its rows, or it hands them to a collector."""

    ROWS = "rows"
    COLLECTOR = "collector"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedBolt:
    """A bolt over windows. It is made by `bolt_of` from what `@windowed_bolt` marked.

    `outputs`: the fields of each stream, "default" first. `target`: the user's function, or class (`is_class`: each
    task makes an instance of it). `style`: whether it, or its `execute`, takes (window) or (window, collector).
    """

    name: str
    config: WindowConfig
    outputs: Mapping[str, Schema]
    target: Callable[..., Any]
    style: CallStyle
    is_class: bool = False

    @property
    def stateful(self) -> bool:
        """Whether it has `init_state`, and so has to be handed a state."""
        return self.is_class and callable(getattr(class_of(self.target), "init_state", None))

    def definition(self) -> dict[str, Any]:
        """Return what the bolt is, as plain JSON data in two parts, to be kept with a checkpoint.

        "fixed" may not change over the life of a checkpoint: stored windows and their output depend on it. "free" may
        change at every restart. Functions are known by their names, aggregators and policies by class and parameters
        (specs.py): their code is the user's to keep compatible. Raises BoltError if a policy cannot be made.
        """
        config = self.config
        fixed = {
            "name": self.name,
            "semantics": config.semantics.value,
            "length": _measure(config.length),
            "slide": _measure(config.slide),
            "timestamp": _field_or_function(config.timestamp),
            "offset_ms": config.offset_ms,
            "lateness": config.lateness.value,
            "repeat": config.repeat,
            "key": None if config.key is None else list(config.key),
            "source": config.source,
            "aggregate": None if config.aggregate is None else spec_of(config.aggregate),
            "eviction": None if config.eviction is None else policy_spec(config.eviction, "eviction", self.name),
            "trigger": None if config.trigger is None else policy_spec(config.trigger, "trigger", self.name),
            "outputs": {
                stream: [list(field) for field in zip(schema.names, schema.types, strict=True)]
                for stream, schema in self.outputs.items()
            },
        }
        free = {
            "lag_ms": config.lag_ms,
            "watermark_interval_ms": config.watermark_interval_ms,
            "late_stream": config.late_stream,
            "idle_timeout_ms": config.idle_timeout_ms,
            "max_future_ms": config.max_future_ms,
            "max_repeats": config.max_repeats,
            "key_ttl_ms": config.key_ttl_ms,
            "on_error": config.on_error.value,
            "on_invalid": config.on_invalid,
            "max_events_in_memory": config.max_events_in_memory,
            "message_id": config.message_id,
            "recovery_timeout_ms": config.recovery_timeout_ms,
            "columnar": config.columnar,
        }
        return {"fixed": fixed, "free": free}


def _measure(measure: Measure | None) -> dict[str, int] | None:
    if measure is None:
        return None
    return {"count": measure.value} if isinstance(measure, Count) else {"ms": measure.ms}


def _field_or_function(timestamp: str | Callable[[Any], int] | None) -> dict[str, str] | None:
    if timestamp is None:
        return None
    return {"field": timestamp} if isinstance(timestamp, str) else {"function": title_of(timestamp)}
