"""Estimates from repeated measurements, with their uncertainty. Imports neither torch nor metaflow."""
