"""What is measured of a variant besides its time."""
