"""The container of a model: one safetensors file with a JSON document and a checksum.

Layout (https://huggingface.co/docs/safetensors, "Format"): 8 bytes little-endian header size, a
JSON header `{"__metadata__": {...}, name: {"dtype", "shape", "data_offsets"}}`, then the arrays.
The metadata's one entry `jaxjuice` is JSON too: `{"checksum": ..., "document": text of a JSON}`.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors

from jaxjuice._errors import ModelFileError
from jaxjuice.io._atomic import atomic_writer

FORMAT_NAME = "jaxjuice-model"
FORMAT_VERSION = 1
_METADATA_KEY = "jaxjuice"

# The safetensors library refuses longer headers.
_MAX_HEADER_SIZE = 100_000_000

_DTYPE_NAMES = {
    np.dtype("bool"): "BOOL",
    np.dtype("uint8"): "U8",
    np.dtype("int32"): "I32",
    np.dtype("int64"): "I64",
    np.dtype("float32"): "F32",
    np.dtype("float64"): "F64",
}


def write_container(
    path: str | os.PathLike[str], document: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> None:
    """Writes a file, whole or not at all.

    Args:
        path: where to; an existing regular file is replaced, and stays as it was on any failure.
        document: JSON-able.
        tensors: arrays of bool, uint8, int32, int64, float32 or float64.

    Raises:
        ModelFileError: the file cannot be written, or `document` is not JSON.
    """
    arrays = {
        name: np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        for name, array in tensors.items()
    }
    try:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    except (TypeError, ValueError) as error:
        raise ModelFileError(
            f"save({os.fspath(path)!r}) got metadata that is not JSON: {error}."
        ) from None
    header = _header(text, arrays)
    if len(header) > _MAX_HEADER_SIZE:
        raise ModelFileError(
            f"save({os.fspath(path)!r}) got {len(text)} characters of metadata, "
            "more than a file takes."
        )
    with atomic_writer(path) as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for array in arrays.values():
            file.write(_bytes_of(array))


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a file's JSON document, but not the arrays.

    Raises:
        ModelFileError: as `read_container`, but damage inside the arrays goes unnoticed.
    """
    return _document_of(path, _read_header(path))[0]


def read_container(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads a file that `write_container` wrote.

    Returns:
        The document and the arrays.

    Raises:
        ModelFileError: the file is missing, unreadable, truncated, foreign, damaged, or of a newer
            format.
    """
    document, checksum, text = _document_of(path, _read_header(path))
    try:
        with safetensors.safe_open(os.fspath(path), framework="np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error)) from error
    if checksum != _checksum(text, tensors):
        raise _damaged(path, "its checksum does not match its content")
    return document, tensors


def _header(text: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    envelope = json.dumps({"checksum": _checksum(text, arrays), "document": text})
    header: dict[str, Any] = {"__metadata__": {_METADATA_KEY: envelope}}
    offset = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _DTYPE_NAMES[np.dtype(array.dtype.newbyteorder("="))],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return encoded + b" " * (-len(encoded) % 8)


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """CRC-32 of the document, and of all arrays (name, dtype, shape, bytes) ordered by name."""
    value = zlib.crc32(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        value = zlib.crc32(f"{name}{array.dtype.str}{array.shape}".encode(), value)
        value = zlib.crc32(_bytes_of(array), value)
    return f"crc32:{value:08x}"


def _read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The safetensors header, unless the file is too short for it or for the arrays."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(9)
            length = int.from_bytes(start[:8], "little")
            if not start:
                raise ModelFileError(f"{name} is empty: no model was ever written to it.")
            if len(start) < 9 or start[8:] != b"{" or not 2 <= length <= _MAX_HEADER_SIZE:
                raise _foreign(path, start)
            encoded = start[8:] + file.read(length - 1)
    except OSError as error:
        raise ModelFileError(f"{name} cannot be read: {error.strerror or error}.") from error
    if len(encoded) < length:
        raise _truncated(path, size, 8 + length)
    try:
        header = json.loads(encoded)
        needed = (
            8
            + length
            + max(
                (entry["data_offsets"][1] for key, entry in header.items() if key[:2] != "__"),
                default=0,
            )
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _damaged(path, "its header is not the JSON of a safetensors file") from error
    if size < needed:
        raise _truncated(path, size, needed)
    return header


def _document_of(path: str | os.PathLike[str], header: dict[str, Any]) -> tuple[dict, str, str]:
    """The document, its checksum, and its text."""
    metadata = header.get("__metadata__")
    envelope = metadata.get(_METADATA_KEY) if isinstance(metadata, dict) else None
    if envelope is None:
        raise ModelFileError(
            f"{os.fspath(path)} is a safetensors file, but not one that jaxjuice.save wrote."
        )
    try:
        fields = json.loads(envelope)
        checksum, text = fields["checksum"], fields["document"]
        document = json.loads(text)
        if document["format"] != FORMAT_NAME:
            raise ModelFileError(f"{os.fspath(path)} holds a {document['format']!r}, and no model.")
        version = int(document["format_version"])
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise _damaged(path, "its description of the circuit is not JSON") from error
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{os.fspath(path)} has format version {version} (written by jaxjuice "
            f"{document.get('jaxjuice_version', 'of a later version')}), and this jaxjuice reads "
            f"versions up to {FORMAT_VERSION}: upgrade jaxjuice to load it."
        )
    return document, checksum, text


def _foreign(path: str | os.PathLike[str], start: bytes) -> ModelFileError:
    guess = ""
    if start[:1] == b"\x80":
        guess = " (it looks like a pickle, as PyJuice's .jpc; juice.load never unpickles)"
    elif start[:2] == b"PK":
        guess = " (it looks like a zip archive, as .npz files are)"
    elif start[:6] == b"\x93NUMPY":
        guess = " (it is a .npy array)"
    return ModelFileError(f"{os.fspath(path)} is not a jaxjuice model{guess}.")


def _truncated(path: str | os.PathLike[str], size: int, needed: int) -> ModelFileError:
    return ModelFileError(
        f"{os.fspath(path)} is truncated: it has {size} bytes, and its header asks for {needed}."
    )


def _damaged(path: str | os.PathLike[str], reason: str) -> ModelFileError:
    return ModelFileError(f"{os.fspath(path)} is damaged: {reason}.")
