"""The table of epochs that `train` prints under its progress bar."""

from __future__ import annotations

from typing import Any

import typer
from tqdm import tqdm

from jaxjuice.circuit import Circuit
from jaxjuice.data import Dataset
from jaxjuice.training import EpochRecord, evaluate


class EpochTable:
    """Prints a line an epoch, and keeps the best parameters for when the user stops the run.

    Attributes:
        best: the record of the best epoch so far, by validation (by training without any); or None.
        best_params: its parameters.
    """

    def __init__(self, pc: Circuit, parts: dict[str, Dataset], batch_size: int) -> None:
        self.best: EpochRecord | None = None
        self.best_params: Any = None
        self._pc = pc
        self._parts = parts
        self._batch_size = batch_size
        self._has_header = False

    def add(self, record: EpochRecord, params: Any) -> None:
        """Takes an epoch; a callback of `juice.fit`."""
        if self.best is None or record.monitored > self.best.monitored:
            self.best, self.best_params = record, params
        cells = {
            "epoch": f"{record.epoch}",
            "train LL": f"{record.train_log_likelihood:.3f}",
            "train bpd": _bits(record.train_bits_per_dimension),
        }
        if record.valid_log_likelihood is not None:
            cells["valid LL"] = f"{record.valid_log_likelihood:.3f}"
            cells["valid bpd"] = _bits(record.valid_bits_per_dimension)
        if "test" in self._parts:
            test = self._parts["test"]
            result = evaluate(
                self._pc,
                params,
                test.values,
                batch_size=self._batch_size,
                missing_mask=test.missing,
            )
            cells["test LL"] = f"{result.log_likelihood:.3f}"
            cells["test bpd"] = _bits(result.bits_per_dimension)
        cells["samples/s"] = f"{record.samples_per_second:,.0f}"
        cells = {name: text for name, text in cells.items() if text}
        if not self._has_header:
            self._print(cells.keys())
            self._has_header = True
        self._print(cells.values())

    def _print(self, cells: Any) -> None:
        # The bar of `juice.fit` makes room, and comes back below.
        with tqdm.external_write_mode():
            typer.echo("  ".join(text.rjust(10 if i else 5) for i, text in enumerate(cells)))


def _bits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
