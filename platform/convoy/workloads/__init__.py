"""Models that people compare machines by: their modules, their data, and small twins of both."""
