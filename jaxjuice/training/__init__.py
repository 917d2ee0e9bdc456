"""Training and evaluation over a data set: batches, validation, checkpoints, progress."""

from jaxjuice.training._data import Batch as Batch
from jaxjuice.training._evaluate import Evaluation as Evaluation, evaluate as evaluate
from jaxjuice.training._fit import fit as fit
from jaxjuice.training._record import EpochRecord as EpochRecord, FitResult as FitResult
