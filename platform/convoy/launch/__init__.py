"""From a configuration to machines: what works where, and which Metaflow decorators ask for it."""
