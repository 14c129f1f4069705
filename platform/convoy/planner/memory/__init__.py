"""What a job takes of GPU and host memory."""
