"""Questions to a circuit beyond its log-likelihood."""

from jaxjuice.queries._sample import sample as sample
