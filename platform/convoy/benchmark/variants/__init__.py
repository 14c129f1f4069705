"""The trainings that take turns in a gang."""
