"""Reads data files: .npy, .npz, .csv, .tsv, .parquet and idx, each also by a built-in name."""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxjuice._errors import DataError
from jaxjuice.data._builtin import BUILTIN_NAMES, load_builtin
from jaxjuice.data._csv import read_csv
from jaxjuice.data._dataset import Dataset, build_dataset, parse_missing, wanted_columns

# Keys of an .npz that are taken for the data when the archive holds several arrays.
_USUAL_KEYS = ("x", "X", "data", "x_train", "train", "images", "arr_0")

# Type codes of the idx format (of the MNIST files), all big-endian.
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class _Wishes(NamedTuple):
    """What the caller of `load_dataset` asks for, besides the file."""

    missing: str | None
    columns: tuple[str, ...] | None
    drop: tuple[str, ...]


def load_dataset(
    source: str | os.PathLike[str],
    *,
    missing: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Dataset:
    """Loads a data set from a file or by its built-in name.

    Args:
        source: a path that ends in .npy, .npz (`file.npz:KEY` picks one of several arrays), .csv,
            .tsv, .parquet, .idx or -ubyte (all but .npz and .parquet may be gzipped), or "digits",
            "mnist5k", "mnist5k:train", "mnist5k:test".
        missing: None: every value must be there. "nan": NaN, empty cells and nulls are missing
            values. A number as text, such as "-1": entries equal to it are missing.
        columns: names of the columns to read, in this order; None for all. Sources without names
            are read whole.
        drop: names of columns not to read (they may hold text).

    Returns:
        The data; whole numbers have an integer dtype.

    Raises:
        DataError: the file cannot be read as numbers; one sentence names the place.
    """
    parse_missing(missing)
    name = os.fspath(source)
    wishes = _Wishes(missing, None if columns is None else tuple(columns), tuple(drop))
    builtin = load_builtin(name)
    if builtin is not None:
        wanted_columns(name, None, wishes.columns, wishes.drop)
        if missing is None:
            return builtin
        marked = build_dataset(builtin.values, source=name, missing=missing)
        return marked.with_image_shape(builtin.image_shape) if builtin.image_shape else marked
    path, key = _split_key(name)
    if not path.exists():
        raise DataError(
            f"There is no file {str(path)!r}, "
            f"and the built-in data sets are {', '.join(BUILTIN_NAMES)}."
        )
    if not path.is_file():
        raise DataError(f"{str(path)!r} is not a file.")
    read = _reader(path)
    try:
        data = read(path, key, wishes)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path} cannot be read: {reason or type(error).__name__}.") from error
    if data.columns is None:
        wanted_columns(name, None, wishes.columns, wishes.drop)
    return data


def _split_key(name: str) -> tuple[Path, str | None]:
    head, separator, key = name.rpartition(":")
    if separator and head.lower().endswith(".npz"):
        return Path(head), key
    return Path(name), None


def _reader(path: Path) -> Callable[[Path, str | None, _Wishes], Dataset]:
    name = path.name.lower()
    base = name.removesuffix(".gz")
    if base.endswith(".npy"):
        return _read_npy
    if name.endswith(".npz"):
        return _read_npz
    if base.endswith((".csv", ".tsv")):
        return _read_text
    if name.endswith((".parquet", ".pq")):
        return _read_parquet
    if base.endswith((".idx", "ubyte")) or ".idx" in base or "-idx" in base:
        return _read_idx
    raise DataError(
        f"{path} has a name that tells no known format; known are .npy, .npz, .csv, .tsv, .parquet "
        "and .idx (or idx3-ubyte), and all but .npz and .parquet also with .gz."
    )


def open_maybe_gzip(path: Path):
    """Opens a file for reading bytes, unpacking it if its first bytes are gzip's."""
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if is_gzip else open(path, "rb")


def _read_npy(path: Path, key: str | None, wishes: _Wishes) -> Dataset:
    del key
    with open_maybe_gzip(path) as file:
        return build_dataset(_parse_npy(file, str(path)), source=str(path), missing=wishes.missing)


def _parse_npy(file, source: str) -> np.ndarray:
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{source} holds Python objects, which are never unpickled; "
                "save an array of numbers."
            ) from None
        raise DataError(
            f"{source} is not a whole .npy file: it is truncated, or something else."
        ) from error


def _read_npz(path: Path, key: str | None, wishes: _Wishes) -> Dataset:
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise DataError(f"{path} is not a whole .npz file: it is truncated, or something else.")
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if not names:
            raise DataError(f"{path} holds no array.")
        if key is None:
            usual = [name for name in _USUAL_KEYS if name in names]
            if len(names) > 1 and not usual:
                raise DataError(
                    f"{path} holds several arrays ({', '.join(names[:10])}): "
                    f"choose one by {path}:{names[0]}."
                )
            key = names[0] if len(names) == 1 else usual[0]
        if key not in names:
            raise DataError(f"{path} holds no array {key!r}; it holds {', '.join(names[:10])}.")
        with archive.open(key + ".npy") as file:
            source = f"{path}:{key}" if len(names) > 1 else str(path)
            return build_dataset(_parse_npy(file, source), source=source, missing=wishes.missing)


def _read_text(path: Path, key: str | None, wishes: _Wishes) -> Dataset:
    del key
    with open_maybe_gzip(path) as file:
        content = file.read()
    is_tsv = ".tsv" in path.name.lower()
    return read_csv(content, source=str(path), is_tsv=is_tsv, **wishes._asdict())


def _read_parquet(path: Path, key: str | None, wishes: _Wishes) -> Dataset:
    del key
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(
            f"{path} needs the package pyarrow, which is not installed: "
            "pip install 'jaxjuice[demo]'."
        ) from None
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a whole Parquet file: it is truncated, or something else."
        ) from error
    if table.num_columns == 0 or table.num_rows == 0:
        raise DataError(
            f"{path} holds no data: {table.num_rows} rows of {table.num_columns} columns."
        )
    wanted = wanted_columns(str(path), tuple(table.column_names), wishes.columns, wishes.drop)
    if wanted is not None:
        table = table.select(list(wanted))
    arrays, nulls = [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if not (
            pa.types.is_boolean(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_null(kind)
        ):
            raise DataError(
                f"{path} holds values of type {kind} in column {name!r}, "
                "and a circuit takes numbers."
            )
        nulls.append(column.is_null().to_numpy())
        wanted = (
            pa.float64() if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind)) else kind
        )
        filled = column.cast(wanted).fill_null(False if pa.types.is_boolean(kind) else 0)
        arrays.append(filled.to_numpy())
    common = np.result_type(*(np.uint8 if array.dtype == bool else array.dtype for array in arrays))
    values = np.stack([array.astype(common) for array in arrays], axis=1)
    null_mask = np.stack(nulls, axis=1)
    return build_dataset(
        values,
        source=str(path),
        missing=wishes.missing,
        columns=tuple(table.column_names),
        nulls=null_mask if null_mask.any() else None,
    )


def _read_idx(path: Path, key: str | None, wishes: _Wishes) -> Dataset:
    del key
    with open_maybe_gzip(path) as file:
        content = file.read()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise DataError(
            f"{path} is not an idx file: its first bytes are not 0, 0, type, dimensions."
        )
    dtype, ndim = np.dtype(_IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * ndim
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(shape) != ndim or len(content) != start + size:
        raise DataError(
            f"{path} has {len(content)} bytes, and its idx header asks for {start + size}: "
            "the file is truncated or damaged."
        )
    if ndim == 1:
        raise DataError(
            f"{path} holds one number a row (labels?), "
            "and the data must be [rows, variables] or images."
        )
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return build_dataset(
        values.astype(dtype.newbyteorder("=")), source=str(path), missing=wishes.missing
    )
