"""Windows over columns: Arrow tables in place of lists of rows, behind the same machine."""

from windowing.columnar.buffer import ColumnBuffer
from windowing.columnar.columns import Keys, Timestamps
from windowing.columnar.manager import ColumnarWindowManager, columnar_executor
from windowing.columnar.panes import ColumnarPaneManager, TablePaneManager, over_columns
from windowing.columnar.rows import ColumnRows
from windowing.columnar.views import viewed

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
