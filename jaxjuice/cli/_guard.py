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
from typer.core import TyperGroup

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

# In JAX's warnings about compiled programs that it could not keep, or not read back.
_CACHE_TROUBLE = "persistent compilation cache"

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


class Commands(TyperGroup):
    """The commands of the program, whose usage errors are one line too, like all others."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Runs the program: exits by itself unless told not to."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        try:
            status = super().main(*args, standalone_mode=False, **kwargs)
        except typer.Abort:
            complain("interrupted.")
            status = INTERRUPTED
        except Exception as error:
            # The class of usage errors is click's own, or that of the copy inside newer typers.
            if not hasattr(error, "format_message"):
                raise
            status = _report_usage(error)
        sys.exit(status or 0)


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


def _report_usage(error: Any) -> int:
    """Prints an error in the options as one line and returns the exit status."""
    text = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        # The help itself; typer may have printed it already.
        typer.echo(text, err=True, nl=bool(text))
        return error.exit_code
    context = getattr(error, "ctx", None)
    program = context.command_path if context else "jaxjuice"
    complain(f"error: {' '.join(text.split())} (`{program} --help` lists the options)")
    return error.exit_code


def _show_warning(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
    del args, kwargs
    text = " ".join(str(message).split())
    # Without its cache, as on a full disk, JAX only compiles anew the next time. Deprecations and
    # the like concern developers, not who types a command.
    if issubclass(category, UserWarning | RuntimeWarning) and _CACHE_TROUBLE not in text:
        complain(f"warning: {text}")
