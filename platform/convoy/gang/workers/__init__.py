"""The processes of a node's ranks: started, watched, stopped."""
