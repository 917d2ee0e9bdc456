"""Checkpoints of a training run, written with orbax."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxjuice._errors import TrainingError


class Checkpoints:
    """A directory of checkpoints: arrays as a flat dict, and a JSON dict of everything else.

    Each checkpoint appears under its name only when it is complete, and the latest two are kept.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        """Opens or creates the directory."""
        # The import takes a second, and only runs with checkpoints pay it.
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self._path = Path(directory).absolute()
        self._manager = ocp.CheckpointManager(
            self._path,
            options=ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False),
            item_handlers={
                "arrays": ocp.StandardCheckpointHandler(),
                "info": ocp.JsonCheckpointHandler(),
            },
        )

    @property
    def latest_epoch(self) -> int | None:
        """The epoch of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, epoch: int, tree: Any, info: dict[str, Any]) -> None:
        """Writes a pytree of arrays and a JSON-able dict."""
        args = self._ocp.args
        arrays = _flat(tree)
        info = {**info, "arrays": _described(arrays)}
        self._manager.save(
            epoch,
            args=args.Composite(arrays=args.StandardSave(arrays), info=args.JsonSave(info)),
        )

    def read_info(self) -> dict[str, Any]:
        """The JSON-able dict of the newest checkpoint."""
        args = self._ocp.args
        restored = self._manager.restore(
            self.latest_epoch, args=args.Composite(info=args.JsonRestore())
        )
        return restored["info"]

    def read_arrays(self, like: Any) -> Any:
        """The pytree of the newest checkpoint.

        Args:
            like: A tree of the same structure, whose arrays give shapes, dtypes and shardings.

        Raises:
            TrainingError: If the checkpoint holds other arrays than `like`.
        """
        args = self._ocp.args
        wanted = _flat(like)
        difference = _difference(_described(wanted), self.read_info()["arrays"])
        if difference:
            raise TrainingError(
                f"The checkpoint of epoch {self.latest_epoch} in {self._path} belongs to another "
                f"circuit or optimizer: {difference}."
            )
        abstract = jax.tree.map(self._ocp.utils.to_shape_dtype_struct, wanted)
        restored = self._manager.restore(
            self.latest_epoch, args=args.Composite(arrays=args.StandardRestore(abstract))
        )["arrays"]
        paths, structure = jax.tree_util.tree_flatten_with_path(like)
        leaves = [restored.get(jax.tree_util.keystr(path), leaf) for path, leaf in paths]
        return jax.tree.unflatten(structure, leaves)

    def close(self) -> None:
        """Ends the manager's threads."""
        self._manager.close()


def _flat(tree: Any) -> dict[str, Any]:
    """The arrays by their path. A flat dict restores the same whatever classes the tree is of.

    Arrays without elements are left out: orbax refuses them, and they hold nothing.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if np.size(leaf) > 0}


def _described(arrays: dict[str, Any]) -> dict[str, str]:
    """Shape and dtype of each array, for the JSON part."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in arrays.items()}


def _difference(wanted: dict[str, str], stored: dict[str, str]) -> str:
    """Says how two descriptions of arrays differ; empty if they are equal."""
    missing, surplus = wanted.keys() - stored.keys(), stored.keys() - wanted.keys()
    if missing:
        return f"it lacks the array {min(missing)}"
    if surplus:
        return f"it has the array {min(surplus)}, which this run lacks"
    for name, description in wanted.items():
        if stored[name] != description:
            return f"the array {name} is {stored[name]} there and {description} here"
    return ""
