"""Reading commits back, and what is known of them on each tier."""
