"""Circuits that `train` builds from its options."""

from __future__ import annotations

import math

from jaxjuice import structures
from jaxjuice._errors import DataError
from jaxjuice.cli._leaves import with_nan
from jaxjuice.cli._options import StructureName
from jaxjuice.data import Dataset
from jaxjuice.distributions import Distribution
from jaxjuice.nodes import CircuitNodes


def build_structure(
    name: StructureName, data: Dataset, dist: Distribution, num_latents: int, seed: int
) -> CircuitNodes:
    """The root of a circuit over the columns of a data set.

    Args:
        name: which structure.
        data: the training rows; only a hidden Chow-Liu tree looks at them.
        dist: the family of all leaves.
        num_latents: nodes a region.
        seed: of random structures.

    Raises:
        DataError: the structure does not suit the data.
    """
    if name is StructureName.HCLT:
        return structures.HCLT(with_nan(data), num_latents=num_latents, input_dist=dist)
    if name is StructureName.HMM:
        return structures.GeneralizedHMM(
            seq_length=data.num_vars, num_latents=num_latents, input_dist=dist
        )
    if name is StructureName.RAT_SPN:
        if data.num_vars < 2:
            raise DataError("A RAT-SPN splits the variables, and the data have only one.")
        # Regions of about four variables are left whole.
        depth = max(1, math.floor(math.log2(data.num_vars)) - 2)
        return structures.RAT_SPN(
            num_vars=data.num_vars,
            num_latents=num_latents,
            depth=depth,
            num_repetitions=4,
            input_dist=dist,
            seed=seed,
        )
    if data.image_shape is None:
        raise DataError(
            "The structure pd cuts images into rectangles, and the data are no images: "
            "say --image-shape HEIGHTxWIDTH, or choose another --structure."
        )
    # Height and width get about six places to cut at; the channels of a pixel stay together.
    intervals = [max(1, math.ceil(size / 7)) for size in data.image_shape[:2]]
    intervals += data.image_shape[2:]
    return structures.PD(
        data_shape=data.image_shape,
        num_latents=num_latents,
        split_intervals=intervals,
        input_dist=dist,
        seed=seed,
    )
