"""A table of numbers, what is known about its columns, and the checks that readers share."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxjuice._errors import DataError

# Readers name at most this many columns in a message.
_MAX_NAMES_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Rows of numeric data.

    Attributes:
        values: `[num_rows, num_vars]`, integers or floats, finite. Missing entries hold 0.
        missing: bool `[num_rows, num_vars]`, True where a value is missing; None when none is.
        source: the file or the name that the data came from, for messages.
        columns: names of the columns, or None where the source has none.
        image_shape: `(height, width)` or `(height, width, channels)` if rows are flattened images.
    """

    values: np.ndarray
    missing: np.ndarray | None = None
    source: str = "data"
    columns: tuple[str, ...] | None = None
    image_shape: tuple[int, ...] | None = None

    @property
    def num_rows(self) -> int:
        return self.values.shape[0]

    @property
    def num_vars(self) -> int:
        return self.values.shape[1]

    @property
    def is_integral(self) -> bool:
        """Whether the values have an integer dtype (readers give whole numbers one)."""
        return bool(np.issubdtype(self.values.dtype, np.integer))

    def take(self, rows: np.ndarray) -> Dataset:
        """The rows with the given indices, in that order."""
        missing = None if self.missing is None else self.missing[rows]
        return dataclasses.replace(self, values=self.values[rows], missing=missing)

    def split(self, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        """Splits rows at random.

        Args:
            fraction: the part of the rows, between 0 and 1, that the second data set gets.
            seed: decides which rows these are.

        Returns:
            The rest, and the part: two data sets, both of at least one row unless `fraction` is 0.
        """
        rest, part = split_rows(self.num_rows, fraction, seed)
        return self.take(rest), self.take(part)

    def with_image_shape(self, shape: tuple[int, ...]) -> Dataset:
        """The same data, said to be flattened images of this shape.

        Raises:
            DataError: the shape does not have as many pixels as there are variables.
        """
        if int(np.prod(shape)) != self.num_vars:
            text = "x".join(str(size) for size in shape)
            raise DataError(
                f"{self.source} has {self.num_vars} variables, "
                f"and images of {text} have {int(np.prod(shape))}."
            )
        return dataclasses.replace(self, image_shape=tuple(shape))

    def column_label(self, index: int) -> str:
        """How a message calls a column: by its name, or by its number from 0."""
        return f"column {self.columns[index]!r}" if self.columns else f"column {index}"


def split_rows(num_rows: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits row numbers at random, always the same way for the same arguments.

    Args:
        num_rows: how many rows there are.
        fraction: the part of them, at least 0 and less than 1, that the second result gets.
        seed: of the permutation.

    Returns:
        Two int64 arrays of row numbers, ascending: the rest and the part.

    Raises:
        DataError: `fraction` is not in [0, 1), or too few rows are there to leave both sides one.
    """
    if not 0.0 <= fraction < 1.0:
        raise DataError(
            f"A split takes a fraction of at least 0 and less than 1 of the rows, not {fraction}."
        )
    part_size = round(num_rows * fraction)
    if fraction > 0.0:
        part_size = max(part_size, 1)
        if part_size >= num_rows:
            raise DataError(
                f"{num_rows} row(s) are too few to set a fraction of {fraction} of them apart."
            )
    order = np.random.default_rng(seed).permutation(num_rows)
    return np.sort(order[part_size:]), np.sort(order[:part_size])


def build_dataset(
    values: np.ndarray,
    *,
    source: str,
    missing: str | None,
    columns: tuple[str, ...] | None = None,
    nulls: np.ndarray | None = None,
    row_labels: list[str] | None = None,
) -> Dataset:
    """Checks an array and turns it into a `Dataset`.

    Whole numbers of any dtype become integers, because a float dtype often comes from a file format
    or from NaN standing for missing, not from the data.

    Args:
        values: `[num_rows, num_vars]`, or images `[num_rows, height, width]` or
            `[num_rows, height, width, channels]`.
        source: what messages call the data.
        missing: None, "nan", or the text of a number which marks missing values.
        columns: the columns' names.
        nulls: bool `[num_rows, num_vars]`, True where the file has no value at all (`values` is
            ignored there).
        row_labels: what messages call each row ("line 7"); "row 0" and so on by default.

    Raises:
        DataError: the array has a wrong number of dimensions or dtype, is empty, or holds NaN or
            infinity.
    """
    values = _numeric(np.asarray(values), source)
    values, image_shape = _flatten(values, source)
    if columns is not None and len(set(columns)) != len(columns):
        columns = None  # Repeated names name nothing.
    draft = Dataset(values, None, source, columns, image_shape)
    mask = _missing_mask(draft, missing, nulls, row_labels)
    if np.issubdtype(values.dtype, np.floating):
        if mask is not None:
            values = np.where(mask, np.zeros((), values.dtype), values)
        _refuse_infinite(dataclasses.replace(draft, values=values), row_labels)
        values = _whole_numbers_as_integers(values)
    elif mask is not None:
        values = np.where(mask, np.zeros((), values.dtype), values)
    return dataclasses.replace(draft, values=values, missing=mask)


def wanted_columns(
    source: str,
    present: tuple[str, ...] | None,
    columns: tuple[str, ...] | None,
    drop: tuple[str, ...],
) -> tuple[str, ...] | None:
    """Which of the columns of a file to read, in which order.

    Args:
        source: what messages call the file.
        present: the names of its columns, or None if they have none.
        columns: the names to read, if the file has names; None for all.
        drop: names to leave out.

    Returns:
        Names, or None for all columns as they are.

    Raises:
        DataError: a name is not present, or no column would be left.
    """
    absent = [name for name in drop if name not in (present or ())]
    if absent:
        has = f"its columns are {', '.join(present[:20])}" if present else "no column has a name"
        raise DataError(f"{source} has no column {absent[0]!r} to drop; {has}.")
    if present is None or (columns is None and not drop):
        return None
    wanted = tuple(name for name in columns or present if name not in drop)
    absent = [name for name in wanted if name not in present]
    if absent:
        shown = ", ".join(absent[:_MAX_NAMES_SHOWN])
        more = " ..." if len(absent) > _MAX_NAMES_SHOWN else ""
        raise DataError(f"{source} lacks the columns that are wanted: {shown}{more}.")
    if not wanted:
        raise DataError(f"{source} has no column left after dropping {', '.join(drop)}.")
    return wanted


def parse_missing(text: str | None) -> float | None:
    """The number that marks missing values; NaN for "nan", None for None.

    Raises:
        DataError: the text is neither "nan" nor a number.
    """
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise DataError(
            f"Missing values are marked by 'nan' or by a number such as -1, not by {text!r}."
        ) from None


def _numeric(values: np.ndarray, source: str) -> np.ndarray:
    kind = values.dtype.kind
    if kind == "b":
        return values.astype(np.uint8)
    if kind in "iu":
        if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise DataError(
                f"{source} holds {values.max()}, which is more than a 64-bit integer takes."
            )
        return values.astype(values.dtype.newbyteorder("="))
    if kind == "f":
        return values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32)
    what = {
        "O": "Python objects",
        "U": "strings",
        "S": "strings",
        "c": "complex numbers",
        "V": "records",
    }
    raise DataError(
        f"{source} holds {what.get(kind, values.dtype.name)}, and a circuit takes numbers."
    )


def _flatten(values: np.ndarray, source: str) -> tuple[np.ndarray, tuple[int, ...] | None]:
    is_image = values.ndim == 3 or (values.ndim == 4 and values.shape[3] in (1, 3, 4))
    if values.ndim != 2 and not is_image:
        raise DataError(
            f"{source} is an array of shape {values.shape}, and the data must be [rows, variables] "
            "or images [rows, height, width] or [rows, height, width, channels]."
        )
    if 0 in values.shape:
        raise DataError(f"{source} holds no data: its shape is {values.shape}.")
    image_shape = tuple(values.shape[1:]) if is_image else None
    return np.ascontiguousarray(values.reshape(values.shape[0], -1)), image_shape


def _missing_mask(
    data: Dataset, missing: str | None, nulls: np.ndarray | None, row_labels: list[str] | None
) -> np.ndarray | None:
    marker = parse_missing(missing)
    values = data.values
    is_float = np.issubdtype(values.dtype, np.floating)
    mask = np.isnan(values) if is_float else np.zeros(values.shape, bool)
    if nulls is not None:
        mask |= nulls
    if mask.any() and not (marker is not None and np.isnan(marker)):
        row, column = _first(mask)
        what = "no value" if nulls is not None and nulls[row, column] else "NaN"
        raise DataError(
            f"{data.source} has {what} in {_row_label(row, row_labels)}, "
            f"{data.column_label(column)}; "
            "say --missing nan (missing='nan' in Python) if that marks a missing value."
        )
    if marker is not None and not np.isnan(marker):
        mask |= values == marker
    return mask if mask.any() else None


def _refuse_infinite(data: Dataset, row_labels: list[str] | None) -> None:
    infinite = np.isinf(data.values)
    if infinite.any():
        row, column = _first(infinite)
        raise DataError(
            f"{data.source} holds {data.values[row, column]} in {_row_label(row, row_labels)}, "
            f"{data.column_label(column)}, and a circuit takes finite numbers."
        )


def _whole_numbers_as_integers(values: np.ndarray) -> np.ndarray:
    if not bool(np.all(values == np.floor(values))) or np.abs(values).max() > 2**53:
        return values
    low, high = int(values.min()), int(values.max())
    for dtype in (np.uint8, np.int16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return values.astype(dtype)
    return values.astype(np.int64)


def _first(mask: np.ndarray) -> tuple[int, int]:
    row, column = divmod(int(np.argmax(mask)), mask.shape[1])
    return row, column


def _row_label(row: int, row_labels: list[str] | None) -> str:
    return row_labels[row] if row_labels is not None else f"row {row}"
