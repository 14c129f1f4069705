"""The processes that ranks are: forked from a preloaded one, with a heartbeat."""
