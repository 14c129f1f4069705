"""Notices that this machine, or the whole gang, is to stop: where they come from, and what they lead to."""
