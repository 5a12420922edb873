"""Windows over columns: the window machines over Arrow tables instead of lists of rows."""

from windowing.columnar.manager import ColumnarMachines, ColumnarWindowManager, ColumnBuffer, viewed
from windowing.columnar.panes import ColumnarPaneManager, TablePaneManager
from windowing.columnar.rows import ColumnRows, Keys, Timestamps

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
