"""Sources of rows in Python, in partitions, which may take acks: one class for LocalCluster and for Spark (package pyarrow).

PartitionedSpout    what a source of your own subclasses; Root: a batch of it, which is acked as a whole
SqliteQueue         a durable queue in one file; loaded with its name
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windowing.queues.spout import PartitionedSpout, Root

if TYPE_CHECKING:
    from windowing.queues.sqlite_queue import SqliteQueue

__all__ = [
    "PartitionedSpout",
    "Root",
    "SqliteQueue",
]


_BY_NAME = {"SqliteQueue": "sqlite_queue"}


def __getattr__(name: str) -> Any:
    if name not in _BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_BY_NAME[name]}"), name)
