"""Collectives: their algorithms as schedules, the check and executor of schedules, and test data with known results."""
