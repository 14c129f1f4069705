"""How long a training takes, what interrupts it, and what it costs."""
