"""RULES: every mistake that a topology can have, a function each, which yields a sentence for each place where it is made.

The first line of a rule's docstring is its row in docs/topology.md (a test compares them). A rule looks only at facts that
could be read: one mistake is reported once, not again by all that follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from windowing.core.checks import did_you_mean
from windowing.errors import shown
from windowing.topology.config_keys import pointless
from windowing.topology.drafts import REASON, Draft, Facts, stream_called
from windowing.topology.groupings import CustomGrouping, DirectGrouping, FieldsGrouping
from windowing.topology.hashing import hashable
from windowing.topology.kept_rules import KEPT_RULES
from windowing.topology.letters import DEAD_LETTERS
from windowing.topology.plan import OutputStream, Subscription
from windowing.topology.window_rules import WINDOW_RULES

__all__ = ["RULES", "name_problem"]


_CALLED = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


def name_problem(name: object, what: str) -> str | None:
    """Return why something may not be called `name`, None for a good name.

    Topologies, components and streams of batches have names as in Storm's examples, with `-` and `.`: no driver makes columns or
    tables of them. What does become one (fields, streams, states, windowed bolts alone) is an identifier: `checked_name`.
    """
    if isinstance(name, str) and _CALLED.fullmatch(name):
        return None
    better = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:62] if isinstance(name, str) else ""
    better = better if better[:1].isalpha() else f"c{better}" if better else "word_count"
    return (
        f"{what} is a name of letters, digits, '_', '-' and '.' that begins with a letter or '_', at most 63 long, "
        f"got {shown(name)}; write for example {better!r}"
    )


def good_names(facts: Facts) -> Iterator[str]:
    """An id is a name: letters, digits, `_`, `-` and `.`, a letter or `_` first, at most 63; two underscores first are ours."""
    for name, draft in facts.drafts.items():
        problem = name_problem(name, f"the id of a {'spout' if draft.is_spout else 'bolt'}")
        if problem is not None:
            yield problem
        elif name.startswith("__"):
            yield f"{draft.called} begins with two underscores, as only the driver's own components do; rename it"
        elif (owner := name.rpartition(".")[0]) in facts.drafts:
            yield f"{draft.called} is called like a stream of {owner!r}, whose rows a run gives as {name!r}; rename one of them"


def distinct_names(facts: Facts) -> Iterator[str]:
    """No two ids differ only in upper and lower case."""
    seen: dict[str, str] = {}
    for name in facts.drafts:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            yield f"{shown(other)} and {shown(name)} differ only in upper and lower case; rename one of them"


def has_spout(facts: Facts) -> Iterator[str]:
    """There is a spout."""
    if not any(draft.is_spout for draft in facts.drafts.values()):
        yield "there is no spout, so there is nothing to work on; add one with set_spout(id, spout)"


def right_kind(facts: Facts) -> Iterator[str]:
    """`set_spout` is given a spout, `set_bolt` a bolt."""
    for name, declared in facts.declarations.items():
        draft = facts.drafts[name]
        if declared.is_spout != draft.is_spout:
            is_now = "spout" if declared.is_spout else "bolt"
            yield f"{draft.called} is given {declared.title!r}, which is a {is_now}; use set_{is_now}"


def positive_parallelism(facts: Facts) -> Iterator[str]:
    """The parallelism is a whole number above 0."""
    for draft in facts.drafts.values():
        tasks = draft.parallelism
        if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks <= 0:
            yield f"{draft.called} has parallelism={shown(tasks)}; give the number of its tasks, 1 or more"


def no_input_of_spouts(facts: Facts) -> Iterator[str]:
    """A spout reads no stream."""
    for draft in facts.drafts.values():
        if draft.is_spout and draft.inputs:
            found = draft.inputs[0]
            yield (
                f"{draft.called} is subscribed to {stream_called(found)}, but a spout only emits; "
                "make it a bolt, or leave out the grouping"
            )


def input_of_bolts(facts: Facts) -> Iterator[str]:
    """A bolt reads some stream."""
    for draft in facts.bolts():
        if not draft.inputs:
            yield f"{draft.called} reads nothing; say what it reads, for example .shuffle_grouping('sentences')"


def known_components(facts: Facts) -> Iterator[str]:
    """What a bolt reads is a component of the topology."""
    for draft, found in _subscriptions(facts):
        if found.component not in facts.drafts:
            hint = did_you_mean(found.component, [name for name in facts.drafts if name != draft.id])
            yield f"{draft.called} reads component {shown(found.component)}, which is not there; {hint}"


def known_streams(facts: Facts) -> Iterator[str]:
    """What a bolt reads is a stream that its component declares; a late stream needs late_stream=."""
    for draft, found in _subscriptions(facts):
        declared = facts.declarations.get(found.component)
        if declared is None or found.stream in facts.outputs.get(found.component, declared.outputs):
            continue
        window = declared.window
        if window is not None and found.stream == window.config.late_stream:
            continue  # its fields are not known: see late_streams
        streams = [*declared.outputs, *([window.config.late_stream] if window and window.config.late_stream else [])]
        hint = did_you_mean(found.stream, streams) if streams else "it declares none; add output= to its decorator"
        if window is not None and window.config.late_stream is None:
            hint += f", or for late tuples add late_stream={shown(found.stream)} and a timestamp to {window.name!r}"
        yield f"{draft.called} reads stream {stream_called(found)}, which is not declared; {hint}"


def no_own_dead_letters(facts: Facts) -> Iterator[str]:
    """No component declares a stream `dead_letters`: there goes what is given up in it."""
    for name, declared in facts.declarations.items():
        late = None if declared.window is None else declared.window.config.late_stream
        for stream in (*declared.outputs, late or ""):
            if stream.lower() == DEAD_LETTERS:
                yield f"{facts.drafts[name].called} has a stream {stream!r}, where dead letters go; give it another name"


def one_subscription(facts: Facts) -> Iterator[str]:
    """A bolt reads a stream once, by one grouping."""
    for draft in facts.bolts():
        seen = set()
        for found in draft.inputs:
            place = (found.component, found.stream)
            if place in seen:
                yield f"{draft.called} reads {stream_called(found)} twice; keep one grouping (Storm would keep the last)"
            seen.add(place)


def no_cycle(facts: Facts) -> Iterator[str]:
    """No component reads, by way of others, what it emits."""
    for cycle in facts.cycles:
        yield (
            f"{' -> '.join([*cycle, cycle[0]])} is a cycle, in which a tuple tree might never be complete; "
            "leave out one of these groupings, or send what goes round through an outer queue"
        )


def keys_of_fields(facts: Facts) -> Iterator[str]:
    """A grouping by fields names fields of the stream, each once, whose types have a hash (no map, no struct)."""
    for draft, found in _subscriptions(facts):
        stream = facts.stream(found)
        if not isinstance(found.grouping, FieldsGrouping):
            continue
        names = found.grouping.fields
        what = f"{draft.called} groups {stream_called(found)} by"
        if not names:
            yield f"{what} no field; name some, or use global_grouping (which is what Storm makes of it)"
        elif len(set(names)) < len(names):
            yield f"{what} a field twice, {', '.join(names)}; name each field once"
        if stream is not None:
            for name in dict.fromkeys(names):
                yield from _wrong_field(what, name, stream)


def same_keys(facts: Facts) -> Iterator[str]:
    """A bolt that reads two streams by the same fields finds them there with types that hash alike."""
    for draft in facts.bolts():
        seen: dict[tuple[str, ...], tuple[Subscription, list[str]]] = {}
        for found in draft.inputs:
            stream = facts.stream(found)
            if not isinstance(found.grouping, FieldsGrouping) or stream is None:
                continue
            names, schema = found.grouping.fields, stream.schema
            if not set(names) <= set(schema.names):
                continue
            kinds = [schema.types[schema.names.index(name)] for name in names]
            other, expected = seen.setdefault(names, (found, kinds))
            if [_alike(kind) for kind in kinds] != [_alike(kind) for kind in expected]:
                yield (
                    f"{draft.called} reads {stream_called(other)} and {stream_called(found)} by {', '.join(names)}, which is "
                    f"{', '.join(expected)} in one and {', '.join(kinds)} in the other, so equal keys would not meet; "
                    "declare the same types"
                )


def direct_streams(facts: Facts) -> Iterator[str]:
    """A direct grouping reads a stream that is declared direct, and such a stream is read by no other grouping."""
    for draft, found in _subscriptions(facts):
        stream = facts.stream(found)
        if stream is None:
            continue
        if isinstance(found.grouping, DirectGrouping) and not stream.direct:
            way_out = f"declare it with direct={found.stream!r}, or use another grouping"
            yield f"{draft.called} reads {stream_called(found)} by direct grouping, but it is not declared direct; {way_out}"
        elif stream.direct and not isinstance(found.grouping, DirectGrouping):
            yield (
                f"{draft.called} reads {stream_called(found)} by {found.grouping} grouping, but its emitter names the task of "
                "each tuple; use direct_grouping"
            )


def callable_custom(facts: Facts) -> Iterator[str]:
    """A custom grouping is a function of (values, tasks), or has choose_tasks(values, tasks)."""
    for draft, found in _subscriptions(facts):
        if isinstance(found.grouping, CustomGrouping):
            choose = found.grouping.choose
            if not callable(getattr(choose, "choose_tasks", choose)) or isinstance(choose, type):
                yield (
                    f"{draft.called} groups {stream_called(found)} by {shown(choose)}; "
                    "give a function of (values, tasks), or an object with choose_tasks(values, tasks)"
                )


def late_streams(facts: Facts) -> Iterator[str]:
    """A late stream has a timestamp to be late by, and inputs without a field `reason` that agree on the type of a name."""
    for draft, declared in facts.windowed():
        assert declared.window is not None
        late = declared.window.config.late_stream
        if late is None:
            continue
        if not declared.window.config.event_time:
            yield f"{draft.called} has late_stream={late!r}, but no tuple is late without timestamp=; add one"
        read = [(found, facts.stream(found)) for found in draft.inputs]
        for found, stream in read:
            if stream is not None and REASON in map(str.lower, stream.schema.names):
                yield f"{draft.called}: its late stream adds a field 'reason', which {stream_called(found)} has; rename it"
        yield from _alike_by_name(draft, late, [(found, stream) for found, stream in read if stream is not None])


def _alike_by_name(draft: Draft, late: str, read: list[tuple[Subscription, OutputStream]]) -> Iterator[str]:
    seen: dict[str, tuple[Subscription, str, str]] = {}
    for found, stream in read:
        for name, kind in zip(stream.schema.names, stream.schema.types, strict=True):
            other, called, expected = seen.setdefault(name.lower(), (found, name, kind))
            if (called, expected) != (name, kind):
                yield (
                    f"{draft.called} reads streams of different fields, so its late stream {late!r} has no fields of its own: "
                    f"{called!r} is {expected} in {stream_called(other)}, {name!r} is {kind} in {stream_called(found)}; declare "
                    f"one name and one type, or leave out late_stream= (late tuples are counted)"
                )


def checkpoints_within_timeout(facts: Facts) -> Iterator[str]:
    """With a stateful bolt, or a window on disk, the checkpoint interval is at most the message timeout, if there is one."""
    config = facts.config
    stateful = [
        name
        for name, declared in facts.declarations.items()
        if declared.stateful
        or (declared.window is not None and declared.window.config.max_events_in_memory is not None)
    ]
    if stateful and config.timeouts and config.state_checkpoint_interval_ms > config.message_timeout_ms:
        yield (
            f"bolt {stateful[0]!r} acks at a checkpoint, every {config.state_checkpoint_interval_ms} ms, but a tuple fails "
            f"after {config.message_timeout_ms} ms; lower topology.state.checkpoint.interval.ms, or raise "
            "topology.message.timeout.secs"
        )


def ordered_delays(facts: Facts) -> Iterator[str]:
    """The longest delay of a retry is at least the first one, and less than an hour."""
    first_ms, longest_ms = facts.config.retry_delay_ms, facts.config.retry_delay_max_ms
    if not first_ms <= longest_ms < 3_600_000:
        yield (
            f"a failed message waits {first_ms} ms at first and {longest_ms} ms at most; give windowing.retry.delay.max.ms a "
            "value from windowing.retry.delay.ms up to an hour"
        )


_OF_TRIDENT = {
    "batch_emit_interval_ms": "nothing makes batches but Trident",
    "max_batch_size": "nothing makes batches but Trident",
}


def settings_of_batches(facts: Facts) -> Iterator[str]:
    """The two settings of batches are for Trident topologies."""
    for key in pointless(facts.config, _OF_TRIDENT):
        yield f"{key} is for a TridentTopology; leave it out"


RULES: tuple[Callable[[Facts], Iterator[str]], ...] = (
    good_names,
    distinct_names,
    has_spout,
    right_kind,
    positive_parallelism,
    no_input_of_spouts,
    input_of_bolts,
    known_components,
    known_streams,
    no_own_dead_letters,
    one_subscription,
    no_cycle,
    keys_of_fields,
    same_keys,
    direct_streams,
    callable_custom,
    late_streams,
    *WINDOW_RULES,
    ordered_delays,
    settings_of_batches,
    checkpoints_within_timeout,
    *KEPT_RULES,
)
"""All of them, in the order in which their sentences are reported."""


def _subscriptions(facts: Facts) -> Iterator[tuple[Draft, Subscription]]:
    return ((draft, found) for draft in facts.bolts() for found in draft.inputs)


def _wrong_field(what: str, name: str, stream: OutputStream) -> Iterator[str]:
    schema = stream.schema
    if name not in schema.names:
        yield f"{what} field {shown(name)}, which is not there; {did_you_mean(name, schema.names)}"
        return
    kind = schema.types[schema.names.index(name)]
    reason = hashable(kind)
    if reason is not None:
        yield f"{what} field {name!r} of type {kind}, which has no hash: {reason}"


def _alike(kind: str) -> str:
    """Return one spelling for all types whose equal values have one hash."""
    if kind in ("tinyint", "smallint"):
        return "int"
    if kind.startswith("decimal("):
        precision, scale = kind[len("decimal(") : -1].split(",")
        return f"decimal(_,{scale})" if int(precision) <= 18 else f"wide decimal(_,{scale})"
    return kind
