"""Convoy: train language models with FSDP over many machines from a Metaflow flow."""

__version__ = "0.1.0"

# Metaflow ships a module with this mark, data files included, to every remote task.
METAFLOW_PACKAGE_POLICY = "include"
