"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

from jaxjuice._errors import ModelFileError


@contextlib.contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a temporary neighbour of `path` for writing, which takes its place on success.

    If anything fails, an existing file stays as it was and the temporary one is removed.

    Raises:
        ModelFileError: the folder is missing or takes no file, `path` is no regular file, or the
            disk is full.
    """
    target = _resolve_target(path)
    with _reporting_errors(path):
        temporary, descriptor = _create_beside(target)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(os.path.dirname(target))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Finds out whether `path` can be written, leaving nothing behind.

    Raises:
        ModelFileError: as `atomic_writer`.
    """
    target = _resolve_target(path)
    with _reporting_errors(path):
        temporary, descriptor = _create_beside(target)
        os.close(descriptor)
        os.unlink(temporary)


def _resolve_target(path: str | os.PathLike[str]) -> str:
    """The file to replace: where a link points, and never a device or a folder."""
    name = os.fspath(path)
    target = os.path.realpath(name)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise ModelFileError(f"{name} cannot be written: there is no folder {folder!r}.")
    if os.path.isdir(target):
        raise ModelFileError(f"{name} cannot be written: it is a folder.")
    if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
        raise ModelFileError(f"{name} cannot be written: it is a device, not a regular file.")
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise ModelFileError(f"{name} cannot be written: it is read-only.")
    return target


def _create_beside(target: str) -> tuple[str, int]:
    """A new empty file in the target's folder, with the permissions of the target or a new file."""
    folder, base = os.path.split(target)
    while True:
        temporary = os.path.join(folder, f".{base[:100]}.{secrets.token_hex(6)}.tmp")
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            with contextlib.suppress(OSError, AttributeError):
                os.fchmod(descriptor, stat.S_IMODE(os.stat(target).st_mode))
            return temporary, descriptor


@contextlib.contextmanager
def _reporting_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise ModelFileError(f"{os.fspath(path)} cannot be written: {reason}.") from error


def _sync_folder(folder: str) -> None:
    """Makes the rename survive a crash, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
