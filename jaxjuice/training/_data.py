"""Batches of equal shape from arrays or streams; the last one is padded with rows of weight 0."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxjuice._batch import as_array, validate_values
from jaxjuice._errors import DataError
from jaxjuice._external_params import external_arrays
from jaxjuice.nodes import InputNodes

if TYPE_CHECKING:
    from jaxjuice.circuit import Circuit

# Arrays up to this size (all of one data set together) are moved to the device once; larger ones
# stay on the host and travel batch by batch. Fixed, so that a run never depends on free memory.
DEVICE_RESIDENT_BYTES = 2**28


class Batch(NamedTuple):
    """Rows for a circuit: one batch, or a whole data set.

    Attributes:
        x: `[rows, num_vars]`, any numeric dtype.
        missing_mask: bool `[num_vars]` or `[rows, num_vars]`, true where a value is missing; or
            None.
        weights: `[rows]`, not negative; None counts every row once.
        external_log_probs: What `pc.log_likelihood` takes under this name, with the rows first in
            each of its arrays; or None.
        external_params: What `pc.log_likelihood` takes under this name; or None.
    """

    x: Any
    missing_mask: Any = None
    weights: Any = None
    external_log_probs: Any = None
    external_params: Any = None


def as_batch(rows: Any) -> Batch:
    """A `Batch` from an array, or from a tuple in the order of `Batch`'s fields."""
    if isinstance(rows, Batch):
        return rows
    return Batch(*rows) if isinstance(rows, tuple) else Batch(rows)


def is_array(data: Any) -> bool:
    """Whether `data` is one array (numpy, jax, pandas, ...) or a tuple of arrays (a `Batch`)."""
    if isinstance(data, tuple):
        return bool(data) and is_array(data[0])
    if isinstance(data, list):  # rows of plain numbers are data; arrays are batches
        return bool(data) and isinstance(data[0], list) and not np.ndim(data[0]) > 1
    return isinstance(data, np.ndarray | jax.Array) or hasattr(data, "__array__")


def check_rows(call: str, batch: Batch, pc: Circuit) -> Batch:
    """Makes the fields arrays and checks that their shapes and dtypes fit each other.

    Raises:
        DataError: If they do not.
    """
    num_vars = pc.num_vars
    x, mask, weights = (None if array is None else as_array(array) for array in batch[:3])
    if x is None or x.ndim != 2 or x.shape[1] != num_vars:
        shape = None if x is None else x.shape
        raise DataError(
            f"{call} got data of shape {shape}, and the circuit takes [rows, {num_vars}]."
        )
    if not (x.dtype == np.bool_ or jnp.issubdtype(x.dtype, jnp.number)):
        raise DataError(f"{call} got data of dtype {x.dtype}, and the circuit takes numbers.")
    if mask is not None and (mask.dtype != np.bool_ or mask.shape not in (x.shape, (num_vars,))):
        raise DataError(
            f"{call} got a missing_mask of dtype {mask.dtype} and shape {mask.shape}, and it must "
            f"be boolean, [{num_vars}] or [{x.shape[0]}, {num_vars}]."
        )
    if weights is not None and weights.shape != (x.shape[0],):
        raise DataError(
            f"{call} got weights of shape {weights.shape}, and there must be one for each of the "
            f"{x.shape[0]} rows."
        )
    external = batch.external_log_probs
    if isinstance(external, Mapping):
        # By variable: node vectors do not sort, as a pytree's keys must.
        keys = [key.var if isinstance(key, InputNodes) else int(key) for key in external]
        if len(set(keys)) < len(keys):
            raise DataError(
                f"{call} got external_log_probs of two input vectors over one variable; only "
                "log_likelihood and log_likelihood_and_flows can tell them apart."
            )
        external = dict(zip(keys, external.values(), strict=True))
    for leaf in jax.tree.leaves(external):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != x.shape[0]:
            raise DataError(
                f"{call} got external_log_probs of shape {np.shape(leaf)}, and their first axis "
                f"must be that of the {x.shape[0]} rows."
            )
    scales = batch.external_params
    if scales is not None:
        scales = external_arrays(call, pc, scales, x.shape[0])
    return Batch(x, mask, weights, external, scales)


def check_values(call: str, batch: Batch, pc: Circuit) -> None:
    """Checks on the host that every value that is not missing suits its leaves.

    Raises:
        DataError: If a value does not, or a weight is negative or not finite.
    """
    validate_values(call, pc.program, batch.x, batch.missing_mask)
    if batch.weights is not None:
        weights = np.asarray(batch.weights)
        if not (np.all(np.isfinite(weights)) and np.all(weights >= 0)):
            raise DataError(f"{call} got weights that are negative or not finite.")


class ArraySource:
    """A data set in memory, cut into batches of one shape.

    Attributes:
        num_rows: Rows of the data.
        batch_size: Rows of a batch.
        num_batches: Batches an epoch.
    """

    def __init__(self, rows: Batch, batch_size: int | None, weight_dtype: Any):
        """Takes checked rows; moves them to the device if they are small enough."""
        self.num_rows = int(rows.x.shape[0])
        self.batch_size = max(1, min(batch_size or self.num_rows, self.num_rows))
        self.num_batches = -(-self.num_rows // self.batch_size)
        weights = rows.weights
        if weights is None:
            weights = np.ones(self.num_rows)
        rows = rows._replace(weights=weights.astype(weight_dtype))
        self._variable_mask = None
        if rows.missing_mask is not None and rows.missing_mask.ndim == 1:
            self._variable_mask = jnp.asarray(rows.missing_mask)
            rows = rows._replace(missing_mask=None)
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(rows))
        self._on_device = num_bytes <= DEVICE_RESIDENT_BYTES
        self._rows = jax.tree.map(jnp.asarray if self._on_device else np.asarray, rows)

    @functools.cached_property
    def fingerprint(self) -> int:
        """A checksum of the data, by which a resumed run knows them. Only checkpoints want it."""
        total = 0
        for array in jax.tree.leaves((self._rows, self._variable_mask)):
            array = np.ascontiguousarray(array)
            about = f"{array.shape} {array.dtype}".encode()
            total = zlib.crc32(array.view(np.uint8).data, zlib.crc32(about, total))
        return total

    def batches(self, epoch: int, order: np.ndarray | None = None) -> Iterator[tuple[Batch, int]]:
        """Yields (batch on the device, its number of real rows), in the order of the row ids."""
        del epoch
        order = np.arange(self.num_rows) if order is None else order
        for start in range(0, self.num_rows, self.batch_size):
            ids = order[start : start + self.batch_size]
            num_real = len(ids)
            # The rows that fill up a batch repeat a real one, so that they are legal data.
            ids = np.pad(ids, (0, self.batch_size - num_real), constant_values=ids[0])
            if self._on_device:
                batch = _gather(self._rows, jnp.asarray(ids, jnp.int32), num_real)
            else:
                batch = jax.tree.map(lambda a, ids=ids: a[ids], self._rows)
                batch.weights[num_real:] = 0
                batch = jax.device_put(batch)
            if self._variable_mask is not None:
                batch = batch._replace(missing_mask=self._variable_mask)
            yield batch, num_real


@functools.partial(jax.jit, donate_argnums=())
def _gather(rows: Batch, ids: jax.Array, num_real: int | jax.Array) -> Batch:
    """The rows with these ids; those from position `num_real` on get weight 0."""
    batch = jax.tree.map(lambda a: jnp.take(a, ids, axis=0, mode="clip"), rows)
    is_real = jnp.arange(ids.shape[0]) < num_real
    return batch._replace(weights=jnp.where(is_real, batch.weights, jnp.zeros_like(batch.weights)))


class StreamSource:
    """Batches that an iterable, or a function of the epoch, delivers.

    Attributes:
        num_rows: Rows of the latest complete epoch, None before.
        num_batches: Batches of the latest complete epoch, None before.
    """

    def __init__(
        self,
        call: str,
        data: Any,
        pc: Circuit,
        batch_size: int | None,
        weight_dtype: Any,
        variable_mask: Any = None,
    ):
        """Takes a function `data(epoch) -> iterable of batches`, or an iterable."""
        self.num_rows: int | None = None
        self.num_batches: int | None = None
        self._call = call
        self._pc = pc
        self._batch_size = batch_size
        self._weight_dtype = weight_dtype
        self._variable_mask = variable_mask
        if not callable(data) and iter(data) is data:
            raise DataError(
                f"{call} got an iterator, which can be read only once; pass a list, an object that "
                "can be iterated again, or a function data(epoch) that returns an iterable."
            )
        self._open: Callable[[int], Any] = data if callable(data) else lambda epoch: data
        self._is_checked = False

    def batches(self, epoch: int, order: np.ndarray | None = None) -> Iterator[tuple[Batch, int]]:
        """Yields (batch on the device, its number of real rows) in the stream's own order."""
        del order
        num_rows = num_batches = 0
        for item in self._open(epoch):
            batch = check_rows(self._call, as_batch(item), self._pc)
            if batch.missing_mask is None and self._variable_mask is not None:
                batch = batch._replace(missing_mask=self._variable_mask)
            num_real = batch.x.shape[0]
            if num_real == 0:
                continue
            if not self._is_checked:
                check_values(self._call, batch, self._pc)
            yield jax.device_put(self._padded(batch, num_real)), num_real
            num_rows, num_batches = num_rows + num_real, num_batches + 1
        if num_batches == 0:
            raise DataError(f"{self._call} got an iterable without any batch in epoch {epoch}.")
        self.num_rows, self.num_batches, self._is_checked = num_rows, num_batches, True

    def _padded(self, batch: Batch, num_real: int) -> Batch:
        self._batch_size = self._batch_size or num_real
        missing = self._batch_size - num_real
        if missing < 0:
            raise DataError(
                f"{self._call} got a batch of {num_real} rows from the iterable, and a batch may "
                f"have at most {self._batch_size} (batch_size, or the size of the first batch)."
            )
        mask = batch.missing_mask
        is_variable_mask = mask is not None and mask.ndim == 1
        weights = batch.weights if batch.weights is not None else np.ones(num_real)
        batch = batch._replace(
            missing_mask=None if is_variable_mask else mask,
            weights=weights.astype(self._weight_dtype),
        )
        if missing:
            batch = jax.tree.map(lambda a: _pad_rows(a, missing), batch)
            weights = np.array(batch.weights)
            weights[num_real:] = 0
            batch = batch._replace(weights=weights)
        return batch._replace(missing_mask=mask) if is_variable_mask else batch


def _pad_rows(array: Any, missing: int) -> Any:
    """Repeats the first row `missing` times at the end."""
    numpy_like = jnp if isinstance(array, jax.Array) else np
    return numpy_like.concatenate([array, numpy_like.repeat(array[:1], missing, axis=0)])


def open_source(
    call: str,
    pc: Circuit,
    data: Any,
    *,
    batch_size: int | None,
    weight_dtype: Any,
    missing_mask: Any = None,
    weights: Any = None,
    external_params: Any = None,
) -> ArraySource | StreamSource:
    """Checks data of any accepted kind and makes a source of batches of them.

    Raises:
        DataError: If data, mask and weights do not fit the circuit and each other.
    """
    if not is_array(data):
        of_rows = missing_mask is not None and np.ndim(missing_mask) != 1
        if of_rows or weights is not None or external_params is not None:
            raise DataError(
                f"{call} got an iterable of batches together with weights, a missing_mask of rows "
                "or external_params; let the iterable deliver juice.training.Batch(x, "
                "missing_mask, weights, external_params=...)."
            )
        mask = None if missing_mask is None else np.asarray(missing_mask)
        return StreamSource(call, data, pc, batch_size, weight_dtype, mask)
    rows = as_batch(data)
    if missing_mask is not None:
        rows = rows._replace(missing_mask=missing_mask)
    if weights is not None:
        rows = rows._replace(weights=weights)
    if external_params is not None:
        rows = rows._replace(external_params=external_params)
    rows = check_rows(call, rows, pc)
    if rows.x.shape[0] == 0:
        raise DataError(f"{call} got data without any row.")
    check_values(call, rows, pc)
    return ArraySource(rows, batch_size, weight_dtype)
