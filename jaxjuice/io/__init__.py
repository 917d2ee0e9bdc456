"""Model files."""

from jaxjuice.io._atomic import atomic_writer as atomic_writer, check_writable as check_writable
from jaxjuice.io._model import (
    ModelInfo as ModelInfo,
    installed_version as installed_version,
    load as load,
    model_info as model_info,
    save as save,
)
