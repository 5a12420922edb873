"""The guard of a machine: all effects of an entry must be performed before the next entry, and a failure ends the machine.

    free --run(effects)--> free     no effect: the entry is complete, even if the result is never iterated
    free --run(effects)--> busy     the first effect is ready; the others are computed as the driver requests them
    busy --exhausted-----> free
    busy --closed--------> spent    the remaining effects are lost
    free, busy --raised--> spent    the machine stopped between two states
    any  --reset()-------> free     after a restore; an iterator from before it ends at once

Laws: entering a machine that is not free raises MachineSpentError and changes nothing. A window is valid from the moment its
Activation is yielded until the driver requests the next effect, or the iterator is closed or fails.

An exception of a user's policy or aggregator inside a machine becomes one BoltError that names bolt, part, window and line
(`fault`); exceptions of a bolt on its window are handled in topology/user_code.py. Each snapshot begins with the name and the
format of its machine; a machine restores only snapshots with its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sized
from enum import Enum
from itertools import chain
from typing import Any, TypeVar

from windowing.errors import BoltError, ConfigError, MachineSpentError, SnapshotError, describe_error, quote
from windowing.windows.events import Activation
from windowing.windows.eviction import EvictionPolicy

T = TypeVar("T")


class MachineState(Enum):
    """The state of a machine between two entries; other modules only read `guard.state`.

    BUSY: effects of the last entry are still to be performed. SPENT: the machine failed or lost effects; only a restore is allowed.
    """

    FREE = "free"
    BUSY = "busy"
    SPENT = "spent"


FREE, _BUSY, _SPENT = MachineState.FREE, MachineState.BUSY, MachineState.SPENT
_END: Any = object()
NO_EFFECTS: Iterator[Any] = iter(())
"""The empty iterator, for entries without effects."""


def one_for_each(payloads: Sized, **columns: Sized | None) -> None:
    """Raise ConfigError for a column of a batch that does not have one value for each tuple. Cost: O(1)."""
    for name, column in columns.items():
        if column is not None and len(column) != len(payloads):
            raise ConfigError(
                f"add_batch() got {len(payloads)} tuples and {len(column)} {name}; give one for each tuple"
            )


class Guard:
    """The guard of one machine: an entry returns `guard.run(generator)`, or calls `guard.enter()` if it has no effects.

    Cost: about 0.2 us for an entry without effects, 0.1 us for each effect.

    >>> guard = Guard()
    >>> list(guard.run(iter(())))
    []
    >>> guard.state
    <MachineState.FREE: 'free'>
    """

    __slots__ = ("_run", "state")

    def __init__(self) -> None:
        self.state = FREE
        self._run: Generator[Any, None, None] | None = None

    def enter(self) -> None:
        """Raise MachineSpentError unless the machine is free; for entries without effects (such as `snapshot`)."""
        if self.state is not FREE:
            self._refuse()

    def run(self, effects: Iterator[T], positions: bool = False) -> Iterator[T]:
        """Run `effects` up to its first item, and return an iterator of all items.

        The items are effects, or (position, effect) pairs with `positions=True`. Raises MachineSpentError if the
        machine is not free. An exception of `effects` is passed on, and the machine is then spent.
        """
        if self.state is not FREE:
            self._refuse()
        self.state = _BUSY
        try:
            first = next(effects, _END)
        except BaseException:
            self.state = _SPENT
            raise
        if first is _END:
            self.state = FREE
            return NO_EFFECTS
        run = self._run = self._guarded(effects, first, positions)
        next(run)
        return run

    def _guarded(self, effects: Iterator[Any], first: Any, positions: bool) -> Generator[Any, None, None]:
        """Yield None, so that a later `close()` runs the finally block; then yield the effects."""
        effect, state = None, _SPENT
        try:
            yield None
            for item in chain((first,), effects):
                effect = item[1] if positions else item
                yield item
                if type(effect) is Activation:
                    effect.window.invalidate()
            state = FREE
        finally:
            if type(effect) is Activation:
                effect.window.invalidate()
            if isinstance(effects, Generator):
                effects.close()
            self._run, self.state = None, state

    def fail(self) -> None:
        """Mark the machine spent, and end the iterator of its last entry; for an entry without effects that failed half way."""
        run, self.state = self._run, _SPENT
        if run is not None:
            run.close()

    def reset(self) -> None:
        """Free the machine after its state was restored; an iterator from before the restore ends at once."""
        self.fail()
        self.state = FREE

    def _refuse(self) -> None:
        if self.state is _BUSY:
            raise MachineSpentError(
                "the machine was entered before the effects of its last entry were all taken, by a bolt that calls its own "
                "run or by another thread, say; iterate them to the end first, let one thread call it at a time, or restore the "
                "machine from its last snapshot"
            )
        raise MachineSpentError(
            "the machine failed or its effects were dropped half way; restore it from its last snapshot and replay "
            "from there"
        )


# -- faults ----------------------------------------------------------------------------------------------------------------------


_CORE = __file__.removesuffix("guard.py")


def fault(component: str, where: str, problem: Exception) -> BoltError:
    """Return the BoltError for a part of `component` that raised `problem`; use `raise fault(...) from problem`.

    where: the part and what it was doing, such as "OnlyOdd.evict on the window that ends at 10".
    """
    trace, line = problem.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_CORE):
            line = f" ({name}:{trace.tb_lineno})"
            break
        trace = trace.tb_next
    return BoltError(f"bolt {component!r} failed in {where}: {describe_error(problem)}{line}")


_POLICY_METHODS = {"eviction": ("evict",), "trigger": ("track", "tick", "due")}


def does_nothing(policy: Any, option: str) -> str | None:
    """Return the end of a sentence about a policy, or a class of policies, that evicts nothing, or fires no window; else None."""
    methods = [getattr(policy, name, None) for name in _POLICY_METHODS[option]]
    inherited = EvictionPolicy.track  # fires nothing
    works = any(callable(each) and getattr(each, "__func__", each) is not inherited for each in methods)
    if works and not inspect.isabstract(policy):
        return None
    return f"has no method {_POLICY_METHODS[option][0]}(self, event)"


def made(factory: Callable[[], Any], option: str, component: str) -> Any:
    """Return the policy that a factory of `eviction=` or `trigger=` makes. Raises BoltError with `component` and `option`."""
    try:
        policy = factory()
    except Exception as problem:
        raise fault(component, f"{option}=, when it was made", problem) from problem
    lacks = does_nothing(policy, option)
    if lacks is not None:
        raise BoltError(
            f"bolt {component!r}: {option}= made {quote(policy)}, which {lacks}; return a policy that has it"
        )
    return policy


# -- Snapshots -------------------------------------------------------------------------------------------------------------------


SNAPSHOT_FORMAT = 1
"""The snapshot format of all machines."""


FORMER_MACHINES = {"ColumnarWindowManager": "WindowManager"}
"""Machines with a name of their own in older versions; the data are the same."""


def refuse_foreign(data: dict[str, Any], machine: str) -> None:
    """Raise SnapshotError for a snapshot of another machine, or of another format."""
    found: Any = data.get("machine")
    if data.get("format") != SNAPSHOT_FORMAT or FORMER_MACHINES.get(str(found), found) != machine:
        raise SnapshotError(
            f"a {machine} snapshot of format {SNAPSHOT_FORMAT} was wanted, got {quote(found)} of "
            f"format {quote(data.get('format'))}; read it with the version of the library that wrote it"
        )
