"""Plans and searches as pages."""
