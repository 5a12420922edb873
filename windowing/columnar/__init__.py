"""Windows over columns: Arrow tables in place of lists of rows, behind the same machine."""

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
