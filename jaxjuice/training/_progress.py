"""The progress bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from jaxjuice.training._evaluate import summary
from jaxjuice.training._record import EpochRecord
from jaxjuice.training._steps import Totals

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit

UPDATES_PER_EPOCH = 20


class Progress:
    """One bar over all samples of all epochs, with the latest figures beside it.

    Reading a figure from the device waits for it. The bar reads about `UPDATES_PER_EPOCH` times an
    epoch, each time the figure of one reading before, which the device has long finished.
    """

    def __init__(self, pc: Circuit, source: Any, epochs: int, first_epoch: int, *, enabled: bool):
        """Makes the bar; `first_epoch` counts the epochs that a resumed run has behind it."""
        self._pc = pc
        self._epochs = epochs
        self._enabled = enabled
        self._source = source
        self._previous: Totals | None = None
        self._figures: dict[str, str] = {}
        num_rows = source.num_rows
        self._bar = tqdm(
            total=None if num_rows is None else num_rows * epochs,
            initial=(num_rows or 0) * first_epoch,
            unit=" samples",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not enabled,
        )

    def start_epoch(self, epoch: int) -> None:
        """Shows the number of the epoch (from 1)."""
        self._previous = None
        if self._enabled:
            self._bar.set_description(f"epoch {epoch}/{self._epochs}")

    def step(self, index: int, num_rows: int, totals: Totals) -> None:
        """Moves on by one batch."""
        if not self._enabled:
            return
        every = max(1, (self._source.num_batches or UPDATES_PER_EPOCH) // UPDATES_PER_EPOCH)
        if (index + 1) % every == 0:
            if self._previous is not None:
                mean = summary(self._pc, self._previous).log_likelihood
                self._show({"train": f"{mean:.2f}"})
            self._previous = totals
        self._bar.update(num_rows)

    def end_epoch(self, record: EpochRecord) -> None:
        """Shows the figures of a whole epoch."""
        if self._bar.total is None and self._source.num_rows is not None:
            self._bar.total = self._source.num_rows * self._epochs
        figures = {"train": f"{record.train_log_likelihood:.2f}"}
        bits = record.train_bits_per_dimension
        if record.valid_log_likelihood is not None:
            figures["valid"] = f"{record.valid_log_likelihood:.2f}"
            bits = record.valid_bits_per_dimension
        if bits is not None:
            figures["bpd"] = f"{bits:.4f}"
        self._show(figures)

    def _show(self, figures: dict[str, str]) -> None:
        self._figures.update(figures)
        if self._enabled:
            self._bar.set_postfix(self._figures, refresh=False)

    def close(self) -> None:
        """Draws the bar a last time."""
        if self._enabled:
            self._bar.refresh()
        self._bar.close()
