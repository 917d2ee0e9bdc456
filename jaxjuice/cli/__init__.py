"""The command line `jaxjuice`."""

from jaxjuice.cli._app import app as app, main as main
