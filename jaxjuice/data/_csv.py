"""Reads delimited text: quickly when it is a clean table of numbers, else line by line."""

from __future__ import annotations

import csv
import io
import itertools

import numpy as np

from jaxjuice._errors import DataError
from jaxjuice.data._dataset import Dataset, build_dataset, wanted_columns

# Cells that mean "no value here" when written in any case.
_EMPTY_CELLS = frozenset(("", "nan", "na", "n/a", "null", "none", "?"))


def read_csv(
    content: bytes,
    *,
    source: str,
    missing: str | None,
    columns: tuple[str, ...] | None = None,
    drop: tuple[str, ...] = (),
    is_tsv: bool = False,
) -> Dataset:
    """Reads delimited text.

    Columns are separated by commas, semicolons or tabs (whichever the first line has most of). The
    first line is taken for names of the columns when none of its cells is a number.

    Args:
        content: the bytes of the file, UTF-8.
        source: what messages call the file.
        missing: as in `load_dataset`; without it a cell without a number is an error.
        columns: the columns to read, in this order, if the file has names; None for all.
        drop: names of columns not to read.
        is_tsv: separate columns by tabs whatever the first line looks like.

    Raises:
        DataError: with the line and the column where a cell is no number, or with the line that
            has too few or too many cells.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{source} is not UTF-8 text: line {line} holds other bytes.") from None
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise DataError(f"{source} is empty.")
    delimiter = "\t" if is_tsv else max(",;\t", key=first.count)
    names = _header(next(csv.reader([first], delimiter=delimiter)))
    wanted = wanted_columns(source, names, columns, drop)
    if wanted is None or wanted == names:
        values = _read_clean(lines, delimiter, has_header=names is not None)
        if values is not None and (names is None or values.shape[1] == len(names)):
            labels = _line_labels(lines, names is not None) if np.isnan(values).any() else None
            return build_dataset(
                values, source=source, missing=missing, columns=names, row_labels=labels
            )
    return _read_line_by_line(text, delimiter, names, wanted, source, missing)


def _header(cells: list[str]) -> tuple[str, ...] | None:
    """Names of the columns, or None if the first line is data."""
    if any(_number(cell) is not None for cell in cells):
        return None
    if all(cell.strip().lower() in _EMPTY_CELLS for cell in cells):
        return None
    return tuple(cell.strip() for cell in cells)


def _number(cell: str) -> float | None:
    # Python also reads "1_000", which no other program writes.
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _read_clean(lines: list[str], delimiter: str, *, has_header: bool) -> np.ndarray | None:
    """The table if every cell is a number and every line is of one length, else None."""
    body = [line for line in lines if line.strip()][1 if has_header else 0 :]
    if not body:
        return None
    try:
        return np.loadtxt(
            body, delimiter=delimiter, dtype=np.float64, comments=None, ndmin=2, quotechar='"'
        )
    except ValueError:
        return None


def _line_labels(lines: list[str], has_header: bool) -> list[str]:
    numbers = [number for number, line in enumerate(lines, start=1) if line.strip()]
    return [f"line {number}" for number in numbers[1 if has_header else 0 :]]


def _read_line_by_line(
    text: str,
    delimiter: str,
    names: tuple[str, ...] | None,
    wanted: tuple[str, ...] | None,
    source: str,
    missing: str | None,
) -> Dataset:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    chosen = None if names is None or wanted is None else [names.index(name) for name in wanted]
    width = len(names) if names is not None else None
    rows, labels = [], []
    try:
        numbered = ((reader.line_num, row) for row in reader)
        content = ((line, row) for line, row in numbered if any(map(str.strip, row)) or row[1:])
        for line, row in itertools.islice(content, 1 if names is not None else 0, None):
            width = width or len(row)
            if len(row) != width:
                columns = "1 column" if len(row) == 1 else f"{len(row)} columns"
                raise DataError(
                    f"{source} has {columns} in line {line}, and {width} in its first line."
                )
            rows.append(
                [_cell(row[index], index, names, line, source) for index in chosen or range(width)]
            )
            labels.append(f"line {line}")
    except csv.Error as error:
        raise DataError(
            f"{source} cannot be read as a table: line {reader.line_num}: {error}."
        ) from None
    if not rows:
        raise DataError(f"{source} holds names of columns, and no rows.")
    values = np.asarray(rows, np.float64)
    return build_dataset(
        values,
        source=source,
        missing=missing,
        columns=wanted or names,
        nulls=np.isnan(values),
        row_labels=labels,
    )


def _cell(cell: str, index: int, columns: tuple[str, ...] | None, line: int, source: str) -> float:
    number = _number(cell)
    if number is not None:
        return number
    if cell.strip().lower() in _EMPTY_CELLS:
        return np.nan
    column = f"column {columns[index]!r}" if columns else f"column {index}"
    shown = cell.strip() if len(cell) <= 30 else cell.strip()[:27] + "..."
    raise DataError(
        f"{source} holds the text {shown!r} in line {line}, {column}, and a circuit takes numbers."
    )
