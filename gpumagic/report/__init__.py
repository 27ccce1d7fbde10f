"""The vocabulary of answers: records, units, events, places; Python alone."""
