"""From the cases of a benchmark to what is known of it. Pure."""
