"""From the text of a page to figures, and back."""
