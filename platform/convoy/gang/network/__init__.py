"""How the agents of a gang find each other, stay in touch, and learn who is silent."""
