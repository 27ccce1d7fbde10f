"""A room with one magic, `%noting`, whose reports have notes that come again."""
