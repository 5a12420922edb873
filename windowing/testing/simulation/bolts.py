"""The tasks that take part in batches: maps, which pass rows on, states, which commit them, and a sink that reads from both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windowing.errors import FailedException, SupersededError
from windowing.runtime.stores.factory import map_state
from windowing.testing.simulation.checks import STATE
from windowing.testing.simulation.source import Add, Row, key_of
from windowing.testing.simulation.tasks import Effects, Task, spec_of
from windowing.transactions.batch_effects import Batch, Begin, Execute, Finish, Forget, Report
from windowing.transactions.bolt_executor import TridentBoltExecutor
from windowing.transactions.rows import Owner

if TYPE_CHECKING:
    from windowing.testing.simulation.world import Message

__all__ = ["MapTask", "SinkTask", "StateTask"]

GROUP = "g"
BOLT_MS = 15_000


class MapTask(Task):
    """A map; states and the sink finish in their own ways."""

    def start(self) -> Effects:
        self._machine = TridentBoltExecutor({GROUP: spec_of(self.scenario, self.name)}, BOLT_MS, in_order=False)
        self._kept: dict[int, list[Row]] = {}
        return iter(())

    def take(self, message: Message) -> Effects:
        now_ms = self.now_ms()
        if message.kind == "tuples":
            attempt, sender, first, items = message.body
            return self._machine.tuples(GROUP, attempt, sender, first, items, now_ms)
        if message.kind == "report":
            attempt, sender, sent = message.body
            return self._machine.report(GROUP, attempt, sender, sent, message, now_ms)
        if message.kind == "commit":
            return self._machine.commit(GROUP, message.body[0], message, now_ms)
        return self._machine.success(GROUP, message.body[0], now_ms)

    def tick(self) -> Effects:
        return self._machine.tick(self.now_ms())

    def perform(self, effect: Any) -> Effects | None:
        if isinstance(effect, Execute):
            batch = effect.batch
            self.attempt_to(lambda: self.execute(effect), lambda cause: self._machine.failed(batch, cause))
        elif isinstance(effect, Finish):
            return self.finish(effect.batch)
        elif isinstance(effect, Begin):
            assert effect.batch.attempt.txid not in self._kept, "a batch was begun twice"
            self._kept[effect.batch.attempt.txid] = []
        elif isinstance(effect, Forget):
            del self._kept[effect.batch.attempt.txid]
        elif isinstance(effect, Report):
            self.report(effect)
        else:
            self.settle(effect)
        return None

    def execute(self, effect: Execute) -> None:
        """Pass the rows on, each to the state of its key, and to the sink."""
        scenario = self.scenario
        for row in effect.items:
            if scenario.poison and row.place % scenario.poison == scenario.poison - 1:
                raise FailedException("poison")
            self.pass_on(f"p{row.key(scenario.keys) % scenario.states}", effect.batch, row)
            if scenario.sink:
                self.pass_on("q", effect.batch, row)

    def pass_on(self, to: str, batch: Batch, row: Row) -> None:
        """Send a row of a batch."""
        self.world.send(to, "tuples", batch.attempt, self.name, self._machine.emitted(batch, to), [row])

    def finish(self, batch: Batch) -> Effects | None:
        """Do what is done when all of a batch is here."""
        return None

    def next_deadline_ms(self) -> int | None:
        return self._machine.next_deadline_ms()

    def check(self) -> None:
        self._machine.check()


class StateTask(MapTask):
    """A partition of the state: collects rows, and commits them at the `$commit`."""

    def start(self) -> Effects:
        scenario = self.scenario
        factory = map_state(self.world.states, STATE, scenario.state, cache=scenario.cache).owned_by(Owner("simulated"))
        self._state = factory.make_state(int(self.name[1:]), scenario.states)
        return super().start()

    def execute(self, effect: Execute) -> None:
        self._kept[effect.batch.attempt.txid] += effect.items

    def finish(self, batch: Batch) -> Effects:
        """Commit, in steps: between any two the task may be held up."""
        rows, state = self._kept[batch.attempt.txid], self._state
        try:
            state.begin_commit(batch.attempt)
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                keys = [key_of(row.key(self.scenario.keys)) for row in half]
                state.multi_update(keys, [Add(row.weight) for row in half])
                yield None
            state.commit(batch.attempt)
            yield None
        except (FailedException, SupersededError) as problem:
            state.rollback()
            self._machine.failed(batch, str(problem))
            return
        if self.scenario.sink:
            for row in rows:
                self.pass_on("q", batch, row)


class SinkTask(MapTask):
    """Reads each row twice: while it is processed, and when it was committed."""

    def execute(self, effect: Execute) -> None:
        self._kept[effect.batch.attempt.txid] += effect.items

    def finish(self, batch: Batch) -> None:
        rows = sorted(self._kept[batch.attempt.txid])
        assert rows[::2] == rows[1::2], f"the sink has in {batch} a row not once from a map and once from a state"
