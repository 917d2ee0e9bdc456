"""What a training run reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EpochRecord:
    """Figures of one epoch. Log-likelihoods are means over samples, in nats.

    The training figures come from the parameters that met each batch, so they lag behind the
    parameters at the end of the epoch; the validation figures are those of the latter. Samples of
    probability 0 are counted and left out of the means.

    Attributes:
        epoch: From 1.
        train_log_likelihood: Mean over the training rows.
        train_bits_per_dimension: The same in bits per observed value, negated; None if the circuit
            has a continuous variable.
        valid_log_likelihood: Mean over the validation rows, None without any.
        valid_bits_per_dimension: As above.
        num_impossible_train: Training rows of probability 0.
        num_impossible_valid: Validation rows of probability 0.
        seconds: Wall time of the epoch's training, without validation and checkpoint.
        samples_per_second: Training rows by `seconds`.
    """

    epoch: int
    train_log_likelihood: float
    train_bits_per_dimension: float | None
    valid_log_likelihood: float | None
    valid_bits_per_dimension: float | None
    num_impossible_train: int
    num_impossible_valid: int
    seconds: float
    samples_per_second: float

    @property
    def monitored(self) -> tuple[int, float]:
        """What early stopping compares: (minus the impossible rows, mean of the others).

        The validation figures where there are any, else the training figures. A row that turns
        impossible leaves the mean, so the number of such rows is compared first.
        """
        if self.valid_log_likelihood is None:
            return -self.num_impossible_train, self.train_log_likelihood
        return -self.num_impossible_valid, self.valid_log_likelihood


@dataclass(frozen=True)
class FitResult:
    """The outcome of `juice.fit`.

    Attributes:
        params: Parameters after the last epoch, in probability space.
        best_params: Parameters after the epoch with the best validation figures; without
            validation data the same as `params`.
        best_epoch: The epoch (from 1) of `best_params`; 0 if no epoch ran.
        history: One record an epoch, those of a resumed run included.
        opt_state: State of the optimizer after the last epoch.
        stopped_early: Whether patience or a callback ended the run before the last epoch.
    """

    params: Any
    best_params: Any
    best_epoch: int
    history: tuple[EpochRecord, ...]
    opt_state: Any
    stopped_early: bool
