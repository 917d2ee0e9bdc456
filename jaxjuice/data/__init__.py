"""Data files and small built-in data sets as arrays that a circuit takes."""

from jaxjuice.data._builtin import (
    BUILTIN_NAMES as BUILTIN_NAMES,
    digits as digits,
    mnist5k as mnist5k,
)
from jaxjuice.data._dataset import Dataset as Dataset, split_rows as split_rows
from jaxjuice.data._load import load_dataset as load_dataset
