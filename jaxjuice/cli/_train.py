"""`jaxjuice train`."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import optax
import typer

from jaxjuice import optim
from jaxjuice._errors import DataError
from jaxjuice.circuit import Circuit, compile
from jaxjuice.cli._evaluate import describe_evaluation
from jaxjuice.cli._guard import INTERRUPTED, complain, guarded, say
from jaxjuice.cli._info import family_text, readable_bytes
from jaxjuice.cli._leaves import choose_family, describe_values, init_continuous
from jaxjuice.cli._options import (
    BatchSizeOption,
    DataArgument,
    DebugOption,
    DropOption,
    InputName,
    MissingOption,
    OptimizerName,
    PrecisionName,
    PrecisionOption,
    SeedOption,
    StructureName,
)
from jaxjuice.cli._progress import EpochTable
from jaxjuice.cli._sample import check_output, draw_samples, encode_samples
from jaxjuice.cli._structures import build_structure
from jaxjuice.data import Dataset, load_dataset
from jaxjuice.io import atomic_writer, check_writable, save
from jaxjuice.training import evaluate, fit

_STEP_SIZES = {OptimizerName.ANEMONE: 0.2, OptimizerName.MINIBATCH: 0.1, OptimizerName.EM: 1.0}
# Anemone measures flows by the sample, so that those of all leaves over a variable sum to 1; the
# others take them in samples.
_PSEUDOCOUNTS = {OptimizerName.ANEMONE: 1e-3, OptimizerName.MINIBATCH: 0.1, OptimizerName.EM: 0.1}


@guarded
def train(
    data: DataArgument,
    structure: Annotated[
        StructureName, typer.Option(help="Structure of the circuit.")
    ] = StructureName.HCLT,
    latents: Annotated[int, typer.Option(min=1, help="Nodes a region of the circuit.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 20,
    batch_size: BatchSizeOption = 128,
    optimizer: Annotated[
        OptimizerName, typer.Option(help="anemone, mini-batch EM, or full-batch EM.")
    ] = OptimizerName.ANEMONE,
    step_size: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Of an update: by default 0.2 (anemone), 0.1 (minibatch)."
        ),
    ] = None,
    momentum: Annotated[
        float, typer.Option(min=0.0, max=0.999, help="Of anemone's running average.")
    ] = 0.9,
    pseudocount: Annotated[
        float | None,
        typer.Option(min=0.0, help="Smoothing, the mass added to each node."),
    ] = None,
    input: Annotated[
        InputName,
        typer.Option(help="Leaves; auto: categorical for whole numbers, gaussian for others."),
    ] = InputName.AUTO,
    valid: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Fraction of rows for validation.")
    ] = 0.1,
    test: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Fraction of rows for testing, set apart first.")
    ] = 0.0,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many epochs without improvement.")
    ] = None,
    missing: MissingOption = None,
    drop: DropOption = None,
    image_shape: Annotated[
        str | None, typer.Option(metavar="HxW[xC]", help="Rows are flattened images of this shape.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the model.")] = Path(
        "model.jjc"
    ),
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Where to write samples: a .png (of images), .npy or .csv file; "
            "for images by default a .png beside --out.",
        ),
    ] = None,
    no_samples: Annotated[
        bool, typer.Option("--no-samples", help="Write no samples, of images neither.")
    ] = False,
    num_samples: Annotated[int, typer.Option(min=1, help="How many samples.")] = 64,
    precision: PrecisionOption = PrecisionName.AUTO,
    seed: SeedOption = 0,
    debug: DebugOption = False,
) -> None:
    """Train a circuit on DATA, and write it to a model file."""
    del debug
    check_writable(out)
    rows = load_dataset(data, missing=missing, drop=drop or ())
    if image_shape is not None:
        rows = rows.with_image_shape(parse_shape(image_shape))
    metadata = describe_data(rows)
    samples_path = choose_samples_path(samples, no_samples, out, metadata)
    if samples_path is not None:
        check_output(samples_path, metadata)
    parts = split(rows, valid, test, seed)
    dist = choose_family(input, rows)
    say(
        "data",
        f"{rows.source}: {rows.num_rows:,} rows of {rows.num_vars} variables, "
        + describe_values(rows),
    )
    say("rows", ", ".join(f"{part.num_rows:,} {name}" for name, part in parts.items()))

    start = time.perf_counter()
    root = build_structure(structure, parts["train"], dist, latents, seed)
    pc = compile(root, precision=precision.value)
    params = init_continuous(pc, pc.init(jax.random.key(seed)), parts["train"], seed)
    say(
        "circuit",
        f"{structure} with {latents} latents over {family_text(dist.to_config())}: "
        f"{pc.num_nodes:,} nodes, {pc.num_parameters:,} parameters, "
        f"built in {time.perf_counter() - start:.1f} s",
    )
    step_size = _STEP_SIZES[optimizer] if step_size is None else step_size
    pseudocount = _PSEUDOCOUNTS[optimizer] if pseudocount is None else pseudocount
    tx = make_optimizer(optimizer, pc, step_size, momentum, pseudocount)
    metadata["training"] = {
        "data": data,
        "structure": structure.value,
        "latents": latents,
        "optimizer": optimizer.value,
        "step_size": step_size,
        "pseudocount": pseudocount,
        "batch_size": batch_size,
        "seed": seed,
        "rows": {name: part.num_rows for name, part in parts.items()},
    }
    params = run(pc, params, tx, parts, epochs, batch_size, patience, seed, out, metadata)
    finish(pc, params, parts, batch_size, out, metadata)
    if samples_path is not None:
        write_samples(samples_path, pc, params, num_samples, seed, metadata)


def parse_shape(text: str) -> tuple[int, ...]:
    """Reads "28x28" or "32x32x3".

    Raises:
        DataError: the text is no such shape.
    """
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or not (
        len(parts) == 2 or (len(parts) == 3 and int(parts[2]) in (1, 3, 4))
    ):
        raise DataError(f"An image shape is written like 28x28 or 32x32x3, not {text!r}.")
    return tuple(int(part) for part in parts)


def choose_samples_path(
    samples: str | None, no_samples: bool, out: Path, metadata: dict[str, Any]
) -> Path | None:
    """Where samples go: where the user says, for images a picture beside the model, else nowhere.

    Raises:
        DataError: the model would go there as well.
    """
    if no_samples or samples == "":
        return None
    if samples is None and "image_shape" not in metadata:
        return None
    path = out.with_suffix(".png") if samples is None else Path(samples)
    if path == out:
        raise DataError(
            f"The model and its samples cannot both go to {out}; say another --out or --samples."
        )
    return path


def describe_data(rows: Dataset) -> dict[str, Any]:
    """What a model file says of its training data, for those who use the model."""
    described: dict[str, Any] = {
        "value_range": [float(rows.values.min()), float(rows.values.max())],
    }
    if rows.columns is not None:
        described["columns"] = list(rows.columns)
    if rows.image_shape is not None:
        described["image_shape"] = list(rows.image_shape)
    return described


def split(rows: Dataset, valid: float, test: float, seed: int) -> dict[str, Dataset]:
    """The rows for training, validation and testing; only those parts that have any.

    Both fractions are of all rows. The test rows depend on their fraction and the seed alone.

    Raises:
        DataError: nothing would be left to train on.
    """
    if valid + test > 0.95:
        raise DataError(f"--valid {valid} and --test {test} leave too few rows to train on.")
    parts = {"train": rows}
    if test > 0:
        parts["train"], parts["test"] = rows.split(test, seed)
    if valid > 0:
        parts["train"], parts["valid"] = parts["train"].split(valid / (1 - test), seed)
    return {name: parts[name] for name in ("train", "valid", "test") if name in parts}


def make_optimizer(
    name: OptimizerName, pc: Circuit, step_size: float, momentum: float, pseudocount: float
) -> optax.GradientTransformation:
    """The optimizer that the options name."""
    if name is OptimizerName.EM:
        return optim.full_batch_em(pc, pseudocount=pseudocount)
    if name is OptimizerName.MINIBATCH:
        return optim.mini_batch_em(pc, step_size=step_size, pseudocount=pseudocount)
    return optim.anemone(pc, step_size=step_size, momentum=momentum, pseudocount=pseudocount)


def run(
    pc: Circuit,
    params: Any,
    tx: optax.GradientTransformation,
    parts: dict[str, Dataset],
    epochs: int,
    batch_size: int,
    patience: int | None,
    seed: int,
    out: Path,
    metadata: dict[str, Any],
) -> Any:
    """Trains, printing a line an epoch; on Ctrl-C saves the best parameters so far and exits."""
    train_rows, valid_rows = parts["train"], parts.get("valid")
    table = EpochTable(pc, parts, batch_size)
    try:
        result = fit(
            pc,
            params,
            train_rows.values,
            tx,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            valid=None if valid_rows is None else valid_rows.values,
            missing_mask=train_rows.missing,
            valid_missing_mask=None if valid_rows is None else valid_rows.missing,
            callbacks=(table.add,),
            patience=patience,
            progress=sys.stderr.isatty(),
        )
    except KeyboardInterrupt:
        if table.best is None:
            complain("interrupted before the first epoch ended; no model was written.")
        else:
            metadata["training"]["interrupted"] = True
            metadata["training"]["best_epoch"] = table.best.epoch
            save(out, pc, table.best_params, metadata)
            complain(
                f"interrupted; {out} holds the best parameters so far (epoch {table.best.epoch})."
            )
        raise typer.Exit(INTERRUPTED) from None
    metadata["training"]["epochs"] = len(result.history)
    metadata["training"]["best_epoch"] = result.best_epoch
    if result.stopped_early:
        say("stopped", f"no improvement for {patience} epochs")
    if result.best_epoch != len(result.history):
        say("best", f"epoch {result.best_epoch}, whose parameters are kept")
    return result.best_params


def finish(
    pc: Circuit,
    params: Any,
    parts: dict[str, Dataset],
    batch_size: int,
    out: Path,
    metadata: dict[str, Any],
) -> None:
    """Evaluates the held-out rows once more, and writes the model."""
    for name in ("valid", "test"):
        if name not in parts:
            continue
        rows = parts[name]
        result = evaluate(pc, params, rows.values, batch_size=batch_size, missing_mask=rows.missing)
        metadata["training"][name] = dataclasses.asdict(result)
        say(name, describe_evaluation(result))
    save(out, pc, params, metadata)
    say("model", f"{out} ({readable_bytes(out.stat().st_size)})")


def write_samples(
    path: Path, pc: Circuit, params: Any, num: int, seed: int, metadata: dict[str, Any]
) -> None:
    """Draws samples and writes them in the format of the file's name."""
    values = np.asarray(draw_samples(pc, params, num, seed))
    with atomic_writer(path) as file:
        file.write(encode_samples(path, values, metadata))
    say("samples", f"{path}: {num:,}")
