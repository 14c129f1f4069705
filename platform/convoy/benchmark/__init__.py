"""Benchmarks: variants that take turns in one gang, so that what is compared is measured under the same conditions."""
