"""The commands as one program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import jax
import typer

from jaxjuice.cli._evaluate import evaluate
from jaxjuice.cli._guard import Commands
from jaxjuice.cli._info import info
from jaxjuice.cli._sample import sample
from jaxjuice.cli._train import train
from jaxjuice.io import installed_version

app = typer.Typer(
    name="jaxjuice",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (train, evaluate, sample, info):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxjuice {installed_version()} (jax {jax.__version__})")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Probabilistic circuits: train a model on a table of numbers, evaluate it, sample it."""
    del version  # Its callback has dealt with it.


def main() -> None:
    """Runs the command line `jaxjuice`."""
    shorten_compilation()
    use_compilation_cache()
    app()


def shorten_compilation() -> None:
    """Keeps LLVM from unrolling loops on CPUs, unless the user's XLA_FLAGS may decide that.

    It would unroll the inner loops of layers of fewer than 48 nodes, transcendental functions
    included: their kernels take several times as long to compile and run no faster.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    names_a_file = not flags.startswith("--") and bool(flags)
    if "xla_backend_extra_options" not in flags and not names_a_file:
        more = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling"
        os.environ["XLA_FLAGS"] = f"{flags} {more}".strip()


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs between runs, in the user's cache folder.

    Does nothing where the user chose a folder by JAX_COMPILATION_CACHE_DIR, or none can be written.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "jaxjuice" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
