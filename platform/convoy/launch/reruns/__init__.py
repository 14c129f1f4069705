"""`convoy run`: starts a job's flow again until the job is done."""
