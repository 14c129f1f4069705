"""Reading commits back, and the marks of what came of it on each tier."""
