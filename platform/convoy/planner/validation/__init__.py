"""How near predictions come to measurements, and what they are fitted to."""
