"""Task: one life of a task of a run: it drives one of the library's machines, and performs what it asks for; and the topology.

master ---> coordinator ---> s0, s1 ---> b0, b1 ---> p0, p1, p2 (states) --- at the commit ---> q
  ^ |                                      +------------- while processing ---------------------> q
  | +-- init --> acker <-- acks and fails of all
  +-- acked, failed ---+

leaders.py   master: MasterBatchCoordinator, StoredRecord, SpoutPending        acker: Acker
             coordinator: TridentSpoutCoordinator                              s: TridentSpoutExecutor and an emitter
bolts.py     b, p, q: TridentBoltExecutor; p commits to a map state, behind its fence
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from windowing.acking.anchors import Anchors, anchored
from windowing.errors import FailedException, StoreUnavailableError
from windowing.testing.simulation.scenario import Fault, Scenario
from windowing.transactions.batch_effects import Ack, Fail, Report
from windowing.transactions.tracked_batch import CoordSpec

if TYPE_CHECKING:
    from windowing.testing.simulation.world import Message, World

__all__ = ["Effects", "Task", "bolts_of", "maps_of", "names_of", "spec_of", "spouts_of", "states_of"]

Effects = Iterator[Any]


def spouts_of(scenario: Scenario) -> list[str]:
    """Return the tasks of the spout."""
    return [f"s{number}" for number in range(scenario.spouts)]


def maps_of(scenario: Scenario) -> list[str]:
    """Return the tasks that pass rows on."""
    return [f"b{number}" for number in range(scenario.maps)]


def states_of(scenario: Scenario) -> list[str]:
    """Return the partitions of the state."""
    return [f"p{number}" for number in range(scenario.states)]


def bolts_of(scenario: Scenario) -> list[str]:
    """Return all tasks with a bolt executor."""
    return [*maps_of(scenario), *states_of(scenario), *(["q"] if scenario.sink else [])]


def names_of(scenario: Scenario) -> list[str]:
    """Return all tasks, the master last."""
    return ["acker", "coordinator", *spouts_of(scenario), *bolts_of(scenario), "master"]


def spec_of(scenario: Scenario, name: str) -> CoordSpec:
    """Return whom a bolt waits for and whom it tells."""
    maps, states = maps_of(scenario), states_of(scenario)
    sinks = ["q"] if scenario.sink else []
    if name == "q":
        return CoordSpec(maps, commit_reports=states)
    if name in states:
        return CoordSpec(maps, commits=True, targets=sinks)
    return CoordSpec(spouts_of(scenario), targets=(*states, *sinks))


class Task:
    """One life of a task. `fuse`: how many steps it has left. `todo`: what it is doing, innermost last."""

    def __init__(self, world: World, name: str, life: int, fuse: int, base_ms: int) -> None:
        self.world = world
        self.scenario = world.scenario
        self.name = name
        self.life = life
        self.fuse = fuse
        self.todo: list[Effects] = []
        self.alarm_ms: int | None = None
        self.is_dead = self.is_held_up = self.is_stopped = False
        self._base_ms = base_ms

    # -- what each does in its own way ---------------------------------------------------------------------------------

    def start(self) -> Effects:
        """Begin: read what the life before has left."""
        return iter(())

    def take(self, message: Message) -> Effects:
        """Take a message."""
        raise NotImplementedError

    def tick(self) -> Effects:
        """Take note of the time."""
        return iter(())

    def perform(self, effect: Any) -> Effects | None:
        """Perform an effect; what it returns is performed before the next."""
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, on this life's clock."""
        return None

    def check(self) -> None:
        """Assert that the machine is sound."""

    # -- what they share -----------------------------------------------------------------------------------------------

    def clock_ms(self) -> int:
        """Return the time on this life's monotonic clock."""
        return self._base_ms + self.world.now_ms

    def now_ms(self) -> int:
        """Return a reading of the clock, which may be an old one."""
        now_ms = self.clock_ms()
        if self.world.luck(Fault.CLOCKS, 0.02):
            return max(0, now_ms - self.world.chance.choice((10, 10_000, 3_600_000)))
        return now_ms

    def unavailable(self) -> StoreUnavailableError:
        """Return the error of a store that did not answer."""
        return StoreUnavailableError(f"the store did not answer {self.name}; the batch is to be tried again")

    def child(self, message: Message) -> Anchors | None:
        """Return the anchors of a tuple that is anchored to a message; none where that was a copy, and all is over."""
        if message.anchors is None or message.anchors.settled:
            return None
        [(root, edge)] = anchored([message.anchors], self._next_edge).edges.items()
        self.world.checks.grew(root, edge)
        return Anchors({root: edge})

    def settle(self, effect: Ack | Fail) -> None:
        """Tell the acker that a message is acked or failed; not a second time, where a copy came when all was forgotten."""
        anchors: Anchors | None = effect.message.anchors
        if anchors is None or anchors.settled:
            return
        [(root, edge)] = anchors.edges.items()
        is_failed = isinstance(effect, Fail)
        if isinstance(effect, Fail):
            anchors.fail()
            self.world.send("acker", "fail", root)
        else:
            [(root, xor)] = anchors.ack()
            self.world.send("acker", "ack", root, xor)
        self.world.checks.settled(root, edge, is_failed)

    def report(self, report: Report) -> None:
        """Tell a target how many tuples were sent to it."""
        anchors = self.child(report.message)
        self.world.send(str(report.target), "report", report.attempt, self.name, report.sent, anchors=anchors)

    def attempt_to(self, act: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Call users' code, which may fail before or after it did something."""
        try:
            fails = self.world.luck(Fault.FAILURES, 0.01)
            if not fails or self.world.chance.random() < 0.5:
                act()
            if fails:
                raise FailedException("by chance")
        except FailedException as problem:
            failed(str(problem))

    def _next_edge(self) -> int:
        return self.world.chance.getrandbits(64) or 1
