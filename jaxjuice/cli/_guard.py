"""What every command shares: errors as one clear line, warnings without noise, exit statuses."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from jaxjuice._errors import (
    DataError,
    ModelFileError,
    ParameterError,
    StructureError,
    TrainingError,
)

# Exit statuses, as shells have them: a user's mistake, a failure of ours, Ctrl-C, a closed pipe.
USER_ERROR = 2
INTERNAL_ERROR = 1
INTERRUPTED = 130
CLOSED_PIPE = 141

_USER_ERRORS = (DataError, ModelFileError, ParameterError, StructureError, TrainingError)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command (with a parameter `debug`) so that no error shows a traceback without it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                command(*args, **kwargs)
            except BrokenPipeError:
                # The reader of our output (`| head`) has enough; nothing more can be written.
                with contextlib.suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(CLOSED_PIPE) from None
            except (typer.Exit, typer.Abort):
                raise
            except KeyboardInterrupt:
                complain("interrupted.")
                raise typer.Exit(INTERRUPTED) from None
            except Exception as error:
                if kwargs.get("debug"):
                    raise
                raise typer.Exit(_report(error)) from None

    return run


def complain(message: str) -> None:
    """Prints one line to stderr."""
    typer.echo(f"jaxjuice: {message}", err=True)


def say(label: str, text: str) -> None:
    """Prints one line of a report."""
    typer.echo(f"{label:<11} {text}")


def _report(error: Exception) -> int:
    """Prints an error as one line and returns the exit status."""
    text = " ".join(str(error).split())
    if isinstance(error, _USER_ERRORS):
        complain(f"error: {text}")
        return USER_ERROR
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        complain("error: out of memory; try a smaller --batch-size or fewer --latents.")
        return USER_ERROR
    complain(
        f"internal error: {type(error).__name__}: {text[:500]} "
        "(--debug shows where; please report it)"
    )
    return INTERNAL_ERROR


def _show_warning(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
    del args, kwargs
    # Deprecations and the like concern developers, not who types a command.
    if issubclass(category, UserWarning | RuntimeWarning):
        complain(f"warning: {' '.join(str(message).split())}")
