"""An IPython extension that does nothing: the least that loading one can cost."""


def load_ipython_extension(ipython):
    """Do nothing."""
