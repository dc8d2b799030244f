"""Model files that run without this project (configs/export, export.py)."""
