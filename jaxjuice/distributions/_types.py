"""The array types of the leaves: V leaves, B samples, P distinct parameter sets, K nodes a leaf."""

from jaxtyping import Array, Bool, Float, Int, Shaped

Observations = Shaped[Array, "V B"]
"""One row a leaf: its variable in every sample, in the data's own dtype."""

WholeNumbers = Int[Array, "V B"]
"""Observations read as int32: categories, counts."""

Reals = Float[Array, "V B"]
"""Observations read as real numbers."""

Legal = Bool[Array, "V B"]
"""Which observations the family takes."""

NodeIndices = Int[Array, "V B"]
"""Which of a leaf's K nodes a sample takes."""

LogProbs = Float[Array, "V B K"]
"""The log-density of every sample under every node of every leaf."""

LeafFlows = Float[Array, "V B K"]
"""The weight (expected count) with which a sample visits a node."""

LeafArrays = dict[str, Float[Array, "P ... K"]]
"""Parameters, statistics or unconstrained values by name, the node axis last."""

Constants = dict[str, Shaped[Array, "P ... K"]]
"""What a leaf is given and never learns, by name, the node axis last."""

NodeArray = Float[Array, "P K"]
"""One number a node."""

CategoryTable = Float[Array, "P C K"]
"""One number for every category of every node."""

CategoryMask = Bool[Array, "P C K"]
"""Which categories a node may take."""

ParamIds = Int[Array, " V"]
"""The parameter set of every leaf."""

Scalar = int | float | Shaped[Array, ""]
"""A number, or a traced scalar."""
