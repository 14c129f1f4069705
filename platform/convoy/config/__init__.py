"""What a user may set: one frozen pydantic class per thing configured. Imports neither torch nor metaflow."""
