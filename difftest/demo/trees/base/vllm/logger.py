"""Where the package's loggers come from."""

import logging


def init_logger(name: str) -> logging.Logger:
    """The logger of one module. `name` is the module's `__name__`."""
    return logging.getLogger(name)
