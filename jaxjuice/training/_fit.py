"""`juice.fit`: the training loop."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from jaxjuice._errors import TrainingError
from jaxjuice._parameters import params_dtype
from jaxjuice.optim import FlowTransformation, accumulate
from jaxjuice.training._checkpoint import Checkpoints
from jaxjuice.training._data import ArraySource, StreamSource, open_source
from jaxjuice.training._evaluate import Evaluation, evaluate_source, summary
from jaxjuice.training._progress import Progress
from jaxjuice.training._record import EpochRecord, FitResult
from jaxjuice.training._steps import (
    constrained,
    em_step,
    fresh_copy,
    gradient_step,
    zero_totals,
)

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit

CALL = "fit(pc, params, data, tx, ...)"
Callback = Callable[[EpochRecord, Any], Any]
Source = ArraySource | StreamSource


# Of checkpoints. They hold arrays as a program lays them out: another order of rows is another
# format, for it would be read without a word.
_FORMAT = 2


def fit(
    pc: Circuit,
    params: Any,
    data: Any,
    tx: optax.GradientTransformation,
    *,
    epochs: int,
    batch_size: int | None,
    seed: int = 0,
    valid: Any = None,
    missing_mask: Any = None,
    valid_missing_mask: Any = None,
    weights: Any = None,
    external_params: Any = None,
    valid_external_params: Any = None,
    mode: str | None = None,
    callbacks: Iterable[Callback] = (),
    patience: int | None = None,
    min_delta: float = 0.0,
    checkpoint_dir: str | PathLike[str] | None = None,
    checkpoint_every: int = 1,
    resume: bool = False,
    progress: bool = True,
    shuffle: bool = True,
) -> FitResult:
    """Trains a circuit, by EM or by gradients.

    The kind of `tx` decides: an optimizer of `juice.optim` gets the flows of each batch and moves
    the parameters in probability space; any other optax transformation gets the gradient of the
    negative mean log-likelihood with respect to `pc.to_unconstrained(params)`. With
    `full_batch_em` and an array as data, the flows of all batches of an epoch are summed before
    its one update.

    All batches have one shape, so the step compiles once: the last batch is filled up with rows of
    weight 0, and no row is dropped. The order of the rows depends on `seed` and the number of the
    epoch only. Nothing waits for the device within an epoch. Data are checked once, on the host:
    an array before the first step, a stream during its first epoch. Arrays of up to 256 MiB move
    to the device once, larger ones batch by batch, both in their own dtype.

    Args:
        pc: The circuit.
        params: Initial parameters. They are copied; the caller's arrays stay valid.
        data: `[rows, num_vars]` (numpy, jax, or anything with `__array__`); a `Batch` or a tuple in
            its order; an iterable of batches that can be iterated anew each epoch; or a function
            `data(epoch)` with the epoch from 0 that returns an iterable of batches. Each batch is
            an array, a tuple or a `Batch` of at most `batch_size` rows.
        tx: Optimizer.
        epochs: Number of epochs in total, those of a resumed run included.
        batch_size: Rows a batch, at most all. None takes all rows at once (for an iterable: the
            size of its first batch).
        seed: Seed of the order of the rows, 0 or more.
        valid: Validation data, of the same kinds as `data`.
        missing_mask: True where a value is missing, `[num_vars]` or `[rows, num_vars]`.
        valid_missing_mask: The same for `valid`.
        weights: `[rows]`, not negative: how often each row counts.
        external_params: Tensors that scale sum weights, a dict as `pc.log_likelihood` takes it,
            with a row for each row of the data. They are data, and stay as they are; a network
            that makes them is trained as in `examples/conditional_hmm.py`.
        valid_external_params: The same for `valid`.
        mode: "em" or "gradient", for a transformation whose class does not tell, such as an
            `optax.chain` around an optimizer of `juice.optim`. None decides by the class.
        callbacks: Functions of (`EpochRecord`, parameters) that run after each epoch, its
            checkpoint already written. One that returns True ends the run.
        patience: Ends the run after so many epochs without improvement of the validation
            log-likelihood (the training log-likelihood if there is no validation); None never.
        min_delta: What counts as improvement, in nats.
        checkpoint_dir: Directory for checkpoints, created if missing.
        checkpoint_every: Epochs between checkpoints. The last epoch always writes one.
        resume: Whether to go on from the newest checkpoint in `checkpoint_dir`, if there is one.
            The run then continues bit for bit.
        progress: Whether to show a progress bar on stderr.
        shuffle: Whether to shuffle the rows each epoch (arrays only).

    Returns:
        Parameters, best parameters and the history.

    Raises:
        TrainingError: If an argument is out of range, or the checkpoint is of another run.
        DataError: If the data do not fit the circuit.
    """
    mode = _checked_mode(pc, tx, mode)
    _check_counts(epochs, batch_size, seed, patience, checkpoint_every)
    dtype = params_dtype(params)
    train_source = open_source(
        CALL,
        pc,
        data,
        batch_size=batch_size,
        weight_dtype=dtype,
        missing_mask=missing_mask,
        weights=weights,
        external_params=external_params,
    )
    valid_source = None
    if valid is not None:
        valid_source = open_source(
            "fit(..., valid=...)",
            pc,
            valid,
            batch_size=batch_size,
            weight_dtype=dtype,
            missing_mask=valid_missing_mask,
            external_params=valid_external_params,
        )
    run = _Run(
        pc=pc,
        tx=_for_whole_epochs(tx, train_source),
        mode=mode,
        source=train_source,
        valid_source=valid_source,
        seed=seed,
        shuffle=shuffle,
        patience=patience,
        min_delta=min_delta,
    )
    checkpoints = None if checkpoint_dir is None else Checkpoints(checkpoint_dir)
    try:
        run.start(params, checkpoints, resume=resume)
        _run_epochs(run, epochs, tuple(callbacks), checkpoints, checkpoint_every, progress)
    finally:
        if checkpoints is not None:
            checkpoints.close()
    return run.result(epochs)


def _run_epochs(
    run: _Run,
    epochs: int,
    callbacks: tuple[Callback, ...],
    checkpoints: Checkpoints | None,
    checkpoint_every: int,
    progress: bool,
) -> None:
    """Runs the epochs that are left, until the run says that it is done."""
    bar = Progress(run.pc, run.source, epochs, run.epoch, enabled=progress)
    try:
        while run.epoch < epochs and not run.is_done:
            record = run.run_epoch(bar)
            is_last = run.epoch == epochs or run.is_done
            if checkpoints is not None and (is_last or run.epoch % checkpoint_every == 0):
                run.save(checkpoints)
            for callback in callbacks:
                # A copy, for the run's own buffers are given away in the next epoch.
                if callback(record, fresh_copy(run.params)) is True:
                    run.stopped_by_callback = True
    finally:
        bar.close()


@dataclass
class _Run:
    """A training run: what it is made of, and where it stands."""

    pc: Circuit
    tx: Any
    mode: str
    source: Source
    valid_source: Source | None
    seed: int
    shuffle: bool
    patience: int | None
    min_delta: float
    epoch: int = 0
    variables: Any = None
    opt_state: Any = None
    best_params: Any = None
    best_epoch: int = 0
    # The figures that patience compares with, and the epoch that reached them.
    reference: tuple[int, float] | None = None
    reference_epoch: int = 0
    history: list[EpochRecord] = field(default_factory=list)
    stopped_by_callback: bool = False
    has_warned: bool = False

    @property
    def params(self) -> Any:
        """The parameters in probability space (the run's own buffers)."""
        if self.mode == "em":
            return self.variables
        return constrained(self.pc, self.variables)

    @property
    def is_done(self) -> bool:
        """Whether patience or a callback has ended the run."""
        waited = self.epoch - self.reference_epoch
        out_of_patience = self.patience is not None and waited >= self.patience
        return self.stopped_by_callback or out_of_patience

    def start(self, params: Any, checkpoints: Checkpoints | None, *, resume: bool) -> None:
        """Sets the variables from `params`, or from the newest checkpoint."""
        params = fresh_copy(params)
        self.variables = params if self.mode == "em" else self.pc.to_unconstrained(params)
        self.opt_state = fresh_copy(self.tx.init(self.variables))
        self.variables = fresh_copy(self.variables)
        if self.valid_source is not None:
            self.best_params = params
        if checkpoints is None:
            if resume:
                raise TrainingError("fit(..., resume=True) needs a checkpoint_dir.")
        elif checkpoints.latest_epoch is not None:
            if not resume:
                raise TrainingError(
                    f"fit(..., checkpoint_dir=...) found the checkpoint of epoch "
                    f"{checkpoints.latest_epoch} there; pass resume=True to go on from it, or "
                    "another directory."
                )
            self._restore(checkpoints)

    def run_epoch(self, bar: Progress) -> EpochRecord:
        """Trains on all batches once, validates, and keeps the best parameters."""
        bar.start_epoch(self.epoch + 1)
        step = em_step if self.mode == "em" else gradient_step
        totals = zero_totals(params_dtype(self.variables))
        started = time.perf_counter()
        batches = self.source.batches(self.epoch, self._order())
        for index, (batch, num_rows) in enumerate(batches):
            self.variables, self.opt_state, totals = step(
                self.pc, self.tx, self.variables, self.opt_state, totals, batch
            )
            bar.step(index, num_rows, totals)
        train = summary(self.pc, totals)
        jax.block_until_ready(self.variables)
        seconds = time.perf_counter() - started
        self.epoch += 1
        record = self._record(train, seconds)
        self.history.append(record)
        self._compare(record)
        bar.end_epoch(record)
        return record

    def _order(self) -> np.ndarray | None:
        """Row ids of this epoch. They depend on seed and epoch only, so a resumed run has them."""
        if not self.shuffle or self.source.num_rows is None:
            return None
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.source.num_rows)

    def _record(self, train: Evaluation, seconds: float) -> EpochRecord:
        valid = None
        if self.valid_source is not None:
            valid = evaluate_source(self.pc, self.params, self.valid_source)
        num_impossible = train.num_impossible + (valid.num_impossible if valid else 0)
        if num_impossible and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"fit(...): in epoch {self.epoch}, {num_impossible} rows had probability 0 "
                "(log-likelihood -inf). They are counted in the history and left out of its means. "
                "A pseudocount keeps probabilities above 0.",
                RuntimeWarning,
                stacklevel=2,
            )
        return EpochRecord(
            epoch=self.epoch,
            train_log_likelihood=train.log_likelihood,
            train_bits_per_dimension=train.bits_per_dimension,
            valid_log_likelihood=valid.log_likelihood if valid else None,
            valid_bits_per_dimension=valid.bits_per_dimension if valid else None,
            num_impossible_train=train.num_impossible,
            num_impossible_valid=valid.num_impossible if valid else 0,
            seconds=seconds,
            samples_per_second=(self.source.num_rows or 0) / seconds,
        )

    def _compare(self, record: EpochRecord) -> None:
        """Updates the best parameters and the state of patience."""
        figures = record.monitored
        if self.valid_source is None:
            self.best_epoch = self.epoch
        else:
            best = self.history[self.best_epoch - 1].monitored if self.best_epoch else None
            if best is None or figures > best:
                self.best_epoch = self.epoch
                self.best_params = fresh_copy(self.params)
        if self.reference is None or _improves(figures, self.reference, self.min_delta):
            self.reference, self.reference_epoch = figures, self.epoch

    def save(self, checkpoints: Checkpoints) -> None:
        """Writes a checkpoint of this epoch."""
        info = {
            "format": _FORMAT,
            "run": self._identity(),
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "reference": None if self.reference is None else list(self.reference),
            "reference_epoch": self.reference_epoch,
            "has_warned": self.has_warned,
            "history": [dataclasses.asdict(record) for record in self.history],
        }
        checkpoints.save(self.epoch, self._arrays(), info)

    def _restore(self, checkpoints: Checkpoints) -> None:
        info = checkpoints.read_info()
        if info.get("format") != _FORMAT:
            raise TrainingError(
                f"The checkpoint has format {info.get('format')!r}, and this version of jaxjuice "
                f"reads format {_FORMAT}."
            )
        for name, value in self._identity().items():
            if info["run"].get(name) != value:
                raise TrainingError(
                    f"fit(..., resume=True) has {name} {value!r}, and the checkpoint was written "
                    f"with {info['run'].get(name)!r}; a run resumes with what it began with."
                )
        arrays = checkpoints.read_arrays(self._arrays())
        self.variables, self.opt_state, self.best_params = arrays
        self.epoch = info["epoch"]
        self.best_epoch = info["best_epoch"]
        self.reference = None if info["reference"] is None else tuple(info["reference"])
        self.reference_epoch = info["reference_epoch"]
        self.has_warned = info["has_warned"]
        self.history = [EpochRecord(**record) for record in info["history"]]

    def _arrays(self) -> Any:
        return self.variables, self.opt_state, self.best_params

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to continue the same one."""
        source = self.source if isinstance(self.source, ArraySource) else None
        return {
            "mode": self.mode,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "rows": None if source is None else source.num_rows,
            "batch_size": None if source is None else source.batch_size,
            "data": None if source is None else source.fingerprint,
            "validation": self.valid_source is not None,
        }

    def result(self, epochs: int) -> FitResult:
        """The outcome."""
        params = self.params
        return FitResult(
            params=params,
            best_params=params if self.valid_source is None else self.best_params,
            best_epoch=self.best_epoch,
            history=tuple(self.history),
            opt_state=self.opt_state,
            stopped_early=self.epoch < epochs,
        )


def _improves(figures: tuple[int, float], reference: tuple[int, float], delta: float) -> bool:
    """Whether fewer rows are impossible, or as many and the mean rose by more than `delta`."""
    if figures[0] != reference[0]:
        return figures[0] > reference[0]
    return figures[1] > reference[1] + delta


def _for_whole_epochs(tx: Any, source: Source) -> Any:
    """Full-batch EM sums the flows of all batches of an epoch before its update."""
    if not (isinstance(tx, FlowTransformation) and tx.full_batch):
        return tx
    if source.num_batches is None:
        raise TrainingError(
            f"{CALL} got full_batch_em and an iterable, whose number of batches is unknown; pass "
            "juice.optim.accumulate(juice.optim.mini_batch_em(pc, step_size=1.0), every=...) with "
            "the number of batches of an epoch."
        )
    return tx if source.num_batches == 1 else accumulate(tx, source.num_batches)


def _checked_mode(pc: Circuit, tx: Any, mode: str | None) -> str:
    if not isinstance(tx, optax.GradientTransformation):
        raise TrainingError(
            f"{CALL} got a {type(tx).__name__} as tx, and it must be an optimizer of juice.optim "
            "or another optax transformation."
        )
    takes_flows = isinstance(tx, FlowTransformation)
    if mode is None:
        mode = "em" if takes_flows else "gradient"
    if mode not in ("em", "gradient"):
        raise TrainingError(f"fit(..., mode={mode!r}) must be 'em', 'gradient' or None.")
    if takes_flows and mode == "gradient":
        raise TrainingError(
            "fit(..., mode='gradient') got an optimizer of juice.optim, which takes flows; leave "
            "the mode out, or pass an optimizer of gradients such as optax.adam."
        )
    if pc.num_roots != 1:
        raise TrainingError(f"{CALL} got a circuit with {pc.num_roots} roots, and it trains one.")
    if takes_flows and tx.pc is not pc and tx.pc.root is not pc.root:
        raise TrainingError(f"{CALL} got an optimizer that was made for another circuit.")
    return mode


def _check_counts(
    epochs: int,
    batch_size: int | None,
    seed: int,
    patience: int | None,
    checkpoint_every: int,
) -> None:
    for name, value, least in (
        ("epochs", epochs, 0),
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("patience", patience, 1),
        ("checkpoint_every", checkpoint_every, 1),
    ):
        may_be_none = name in ("batch_size", "patience")
        if value is None and may_be_none:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            other = " or None" if may_be_none else ""
            raise TrainingError(
                f"fit(..., {name}={value!r}) must be a whole number, {least} or more{other}."
            )
