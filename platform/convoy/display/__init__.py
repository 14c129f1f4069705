"""Pages as plain data, and how terminals, cards, HTML and Markdown draw them."""
