"""The paper's own numbers, one file per table, with its misprints marked."""

from mixfluence.paper.tables import Misprint, PaperRow, PaperTable, read_table, table_names

__all__ = ["Misprint", "PaperRow", "PaperTable", "read_table", "table_names"]
