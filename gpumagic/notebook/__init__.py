"""All that touches IPython: magics, cells, what goes round them, what they show."""
