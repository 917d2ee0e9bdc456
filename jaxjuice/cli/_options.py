"""Names and help of the options that several commands share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class StructureName(enum.StrEnum):
    """Circuit structures that `train` builds."""

    HCLT = "hclt"
    HMM = "hmm"
    RAT_SPN = "rat-spn"
    PD = "pd"


class OptimizerName(enum.StrEnum):
    """Optimizers that `train` uses."""

    ANEMONE = "anemone"
    MINIBATCH = "minibatch"
    EM = "em"


class InputName(enum.StrEnum):
    """Families of leaves that `train` chooses from."""

    AUTO = "auto"
    CATEGORICAL = "categorical"
    BERNOULLI = "bernoulli"
    BINOMIAL = "binomial"
    POISSON = "poisson"
    GAUSSIAN = "gaussian"
    DISCRETE_LOGISTIC = "discrete-logistic"


class PrecisionName(enum.StrEnum):
    """Precisions of the matrix products (CPUs compute in fp32 whatever is chosen)."""

    AUTO = "auto"
    BF16 = "bf16"
    TF32 = "tf32"
    BF16X3 = "bf16x3"
    FP32 = "fp32"


DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .npy, .npz, .csv, .tsv, .parquet or idx(.gz) file, or a built-in name: digits, "
        "mnist5k (also mnist5k:train, mnist5k:test).",
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model file that `jaxjuice train` wrote.")
]
MissingOption = Annotated[
    str | None,
    typer.Option(
        help="What marks a missing value: 'nan' (NaN, empty cells, nulls) or a number such as -1."
    ),
]
DropOption = Annotated[
    list[str] | None,
    typer.Option(help="Name of a column to leave out, such as a label. May be repeated."),
]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Rows per batch.")]
PrecisionOption = Annotated[PrecisionName, typer.Option(help="Precision of matrix products.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all random choices.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
