"""Strategies: functions that spread a model over ranks, applied from outside the model."""
