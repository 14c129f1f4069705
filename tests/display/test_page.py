"""Tables are built from columns."""

from convoy.display import formatting
from convoy.display.page import Column, Table, columns, transposed

Row = tuple[str, int, float | None, None]

ROWS: tuple[Row, ...] = (("a", 1234, 0.5, None), ("b", 5, None, None))
NAME = Column[Row]("Name", lambda row: row[0])
COUNT = Column[Row]("Count", lambda row: row[1], formatting.integer, right=True)
SHARE = Column[Row]("Share", lambda row: row[2], formatting.percent)
NOTE = Column[Row]("Note", lambda row: row[3])


def test_each_column_formats_its_value_and_leaves_a_missing_one_empty() -> None:
    assert columns(ROWS, NAME, COUNT, SHARE) == Table(
        ("Name", "Count", "Share"), (("a", "1,234", "50.0 %"), ("b", "5", "")), right=(1,)
    )


def test_a_column_may_name_what_is_missing() -> None:
    unknown = Column[Row]("Note", lambda row: row[3], missing="not known")
    assert columns(ROWS, unknown).rows == (("not known",), ("not known",))


def test_columns_without_a_value_are_dropped_on_request_and_alignment_follows() -> None:
    assert columns(ROWS, NOTE, NAME, COUNT, drop_empty=True) == Table(
        ("Name", "Count"), (("a", "1,234"), ("b", "5")), right=(1,)
    )
    assert columns(ROWS, NAME, NOTE).headers == ("Name", "Note")


def test_a_transposed_table_has_a_row_for_each_column() -> None:
    assert transposed(columns(ROWS, NAME, COUNT, SHARE)) == Table(
        ("Name", "a", "b"), (("Count", "1,234", "5"), ("Share", "50.0 %", ""))
    )
