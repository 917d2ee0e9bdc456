"""The exceptions of jaxjuice. Each is also a built-in `ValueError`, so callers may catch either."""


class StructureError(ValueError):
    """A circuit (or the arguments that should build one) is not legal."""


class ParameterError(ValueError):
    """Parameters do not fit the nodes that they are given to."""


class DataError(ValueError):
    """Data (values, shapes, masks, weights) do not fit the circuit."""


class ModelFileError(ValueError):
    """A model file cannot be read or written: truncated, foreign, newer, or unwritable."""


class TrainingError(ValueError):
    """Arguments of an optimizer or of `fit` cannot be used, or a run cannot be resumed."""
