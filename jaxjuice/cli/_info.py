"""`jaxjuice info`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any

import typer

from jaxjuice.cli._guard import guarded, say
from jaxjuice.cli._options import DebugOption, ModelArgument
from jaxjuice.io import load, model_info


@guarded
def info(
    model: ModelArgument,
    layers: Annotated[
        bool, typer.Option("--layers", help="Also print the compiled layers with their shapes.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Print what MODEL is: its size, its leaves, how it was trained."""
    del debug
    about = model_info(model)
    say("file", f"{model}: {readable_bytes(about.file_size)}, format {about.format_version}")
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    say("written", f"{about.created} by jaxjuice {about.jaxjuice_version} ({versions})")
    say(
        "circuit",
        f"{about.num_vars:,} variables, {about.num_nodes:,} nodes in {about.num_node_vectors:,} "
        f"vectors, {about.num_edges:,} edges",
    )
    say("parameters", f"{about.num_parameters:,} in {about.dtype}, precision {about.precision!r}")
    for text, count in Counter(family_text(config) for config in about.distributions).items():
        say("leaves", text if count == 1 else f"{count} x {text}")
    for name, value in about.metadata.items():
        if isinstance(value, dict):
            for key, item in value.items():
                say(name, f"{key} = {_short(item)}")
        else:
            say(name, _short(value))
    if layers:
        pc, _ = load(model)
        typer.echo(f"\n{pc}")


def family_text(config: dict[str, Any]) -> str:
    """A family as it is written in Python."""
    fields = ", ".join(f"{name}={value}" for name, value in config.items() if name != "family")
    return f"{config['family']}({fields})"


def readable_bytes(size: int) -> str:
    """A file size with its unit."""
    value = float(size)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."
