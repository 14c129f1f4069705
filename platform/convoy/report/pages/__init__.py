"""The pages of jobs and plans."""
