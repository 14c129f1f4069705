"""From the event log of a job to what happened, what it took and what it cost. Pure."""
