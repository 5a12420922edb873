"""coord_specs: what each task of a plan waits for in a batch, and whom it tells; for drivers with a TridentBoltExecutor a task.

    group waits        (plan.waits)  it reports at the commit: it commits, or reads a group that waits
    reports            the tasks of groups that it reads, and that do not wait
    commit_reports     those that do
    targets            the tasks of the groups that read it

A task reports once for a batch, so a group that waits tells all groups behind it at the commit, also of what was complete before.
"""

from __future__ import annotations

from collections.abc import Iterable

from windowing.topology.trident.plan import Exchange, GroupPlan, TridentPlan
from windowing.transactions.tracked_batch import CoordSpec

__all__ = ["TaskId", "coord_specs", "targets_of"]

TaskId = tuple[str, int]
"""The id of a group, and the number of a task in it."""


def coord_specs(plan: TridentPlan, group: GroupPlan) -> dict[str, CoordSpec]:
    """Return the spec of a group's tasks for each batch group that it works for; none for a spout, which has its own executor."""
    return {} if group.is_spout else {name: _spec(plan, group, name) for name in group.batch_groups}


def targets_of(plan: TridentPlan, group: str, batch_group: str) -> tuple[TaskId, ...]:
    """Return the tasks that read a group, each once."""
    return _tasks(plan, (found.target_group for found in _of(plan.out_of(group), batch_group)))


def _spec(plan: TridentPlan, group: GroupPlan, batch_group: str) -> CoordSpec:
    sources = [exchange.group for exchange in _of(plan.into(group.id), batch_group)]
    waiting = {id: plan.waits(id, batch_group) for id in sources}
    mine = [number for number in group.nodes if plan.batch_groups[number] == batch_group]
    return CoordSpec(
        _tasks(plan, (id for id in sources if not waiting[id])),
        commits=any(plan.processor(number).committer for number in mine),
        commit_reports=_tasks(plan, (id for id in sources if waiting[id])),
        targets=targets_of(plan, group.id, batch_group),
    )


def _of(exchanges: Iterable[Exchange], batch_group: str) -> list[Exchange]:
    return [exchange for exchange in exchanges if exchange.batch_group == batch_group]


def _tasks(plan: TridentPlan, groups: Iterable[str]) -> tuple[TaskId, ...]:
    return tuple((id, task) for id in dict.fromkeys(groups) for task in range(plan.group(id).parallelism))
