"""What drills stand on: file systems, networks and a metadata service of their own."""
