"""One decoder transformer, its loss, its weights and its counts. Importing the package does not import torch."""
