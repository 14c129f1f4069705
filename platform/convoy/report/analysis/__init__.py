"""What happened in a job, what it took and what it cost, by its event log. Pure."""
