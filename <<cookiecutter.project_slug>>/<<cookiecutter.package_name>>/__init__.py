"""The project's rooms: data, models, optim, callbacks, loggers, export, and the flows that the doors start."""

__version__ = "0.1.0"
