"""Faults put into a real gang on this machine, and what they need. Never imports torch or metaflow."""
