"""What is known of a network as pages."""
