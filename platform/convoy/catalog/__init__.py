"""Dated facts about rented machines: instance types, GPU peaks, prices. Imports neither torch nor metaflow."""
