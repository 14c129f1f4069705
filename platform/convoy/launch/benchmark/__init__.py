"""The benchmark flow."""
