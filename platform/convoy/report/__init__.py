"""What people and machines read of a job: pure functions of its configuration and its events."""
