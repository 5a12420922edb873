"""Windows over columns: Arrow tables in place of lists of rows, behind the same machine."""

from windowing.columnar.manager import ColumnarWindowManager, ColumnBuffer, columnar_executor, viewed
from windowing.columnar.panes import ColumnarPaneManager, TablePaneManager, over_columns
from windowing.columnar.rows import ColumnRows, Keys, Timestamps

__all__ = [
    "ColumnBuffer",
    "ColumnRows",
    "ColumnarPaneManager",
    "ColumnarWindowManager",
    "Keys",
    "TablePaneManager",
    "Timestamps",
    "columnar_executor",
    "over_columns",
    "viewed",
]
