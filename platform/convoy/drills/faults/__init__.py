"""What a drill does to a gang, one class per drill."""
