"""Windows over columns: the window machines over Arrow tables instead of lists of rows."""

from windowing.optional import with_extra

try:
    from windowing.columnar.manager import ColumnarMachines, ColumnarWindowManager, ColumnBuffer, viewed
    from windowing.columnar.panes import ColumnarPaneManager, TablePaneManager
    from windowing.columnar.rows import ColumnRows, Keys, Timestamps
except ModuleNotFoundError as problem:
    raise with_extra(problem, "columnar=") from problem

__all__ = [
    "ColumnBuffer",
    "ColumnRows",
    "ColumnarMachines",
    "ColumnarPaneManager",
    "ColumnarWindowManager",
    "Keys",
    "TablePaneManager",
    "Timestamps",
    "viewed",
]
