"""Callbacks of our own beside Lightning's (configs/callbacks)."""
