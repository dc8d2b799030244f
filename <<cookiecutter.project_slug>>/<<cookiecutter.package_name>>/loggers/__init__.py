"""Loggers that need more than Lightning gives (configs/logger)."""
