"""Faults: what a user's policy or aggregator raised inside a machine, as one BoltError that names bolt, part, window and line.

a bolt raises on its window           topology/blame.py, around the call of the bolt
a policy, an aggregator, a trigger    here, around each call that a machine makes of them
"""

from __future__ import annotations

from windowing.errors import BoltError, told

__all__ = ["fault"]

_CORE = __file__.rpartition("faults.")[0]


def fault(component: str, where: str, problem: Exception) -> BoltError:
    """Return the error of a part of `component` that raised `problem`; raise it `from` the problem, which stays its cause.

    where: the part and what it was doing, such as "OnlyOdd.evict on the window that ends at 10".
    """
    trace, line = problem.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_CORE):
            line = f" ({name}:{trace.tb_lineno})"
            break
        trace = trace.tb_next
    return BoltError(f"bolt {component!r} failed in {where}: {told(problem)}{line}")
