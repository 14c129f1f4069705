"""Readers of other tools' network results, one for each format. Pure."""
