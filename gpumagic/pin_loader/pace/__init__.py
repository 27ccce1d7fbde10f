"""How fast each part is, what that allows for, and what comes of it."""
