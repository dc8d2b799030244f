"""Learning-rate schedules (configs/scheduler)."""
