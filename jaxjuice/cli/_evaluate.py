"""`jaxjuice evaluate`."""

from __future__ import annotations

from jaxjuice.cli._guard import guarded, say
from jaxjuice.cli._models import check_columns, opened
from jaxjuice.cli._options import (
    BatchSizeOption,
    DataArgument,
    DebugOption,
    DropOption,
    MissingOption,
    ModelArgument,
    PrecisionName,
    PrecisionOption,
)
from jaxjuice.data import load_dataset
from jaxjuice.training import Evaluation, evaluate as evaluate_data


@guarded
def evaluate(
    model: ModelArgument,
    data: DataArgument,
    missing: MissingOption = None,
    drop: DropOption = None,
    batch_size: BatchSizeOption = 512,
    precision: PrecisionOption = PrecisionName.AUTO,
    debug: DebugOption = False,
) -> None:
    """Print the mean log-likelihood of DATA under MODEL."""
    del debug
    with opened(model) as (pc, params, about):
        columns = about.metadata.get("columns")
        rows = load_dataset(data, missing=missing, columns=columns, drop=drop or ())
        check_columns(model, about, rows)
        pc = pc.with_precision(precision.value)
        result = evaluate_data(
            pc, params, rows.values, batch_size=batch_size, missing_mask=rows.missing
        )
    say("model", f"{model}: {about.num_vars} variables, {about.num_parameters:,} parameters")
    say("data", f"{rows.source}: {rows.num_rows:,} rows")
    say("result", describe_evaluation(result))


def describe_evaluation(result: Evaluation) -> str:
    """The figures of an evaluation in words."""
    text = f"log-likelihood {result.log_likelihood:.4f} nats per row"
    if result.bits_per_dimension is not None:
        text += f", {result.bits_per_dimension:.4f} bits per dimension"
    if result.num_impossible:
        text += f"; without {result.num_impossible:,} row(s) of probability 0"
    return text
