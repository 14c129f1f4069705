"""Messages about moments of a job, by apprise."""
