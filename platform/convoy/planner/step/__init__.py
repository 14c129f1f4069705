"""The time of one optimizer step, part by part."""
