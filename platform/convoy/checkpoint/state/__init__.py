"""The state that a checkpoint holds: tensors and plain values by name, and how ranks share them."""
