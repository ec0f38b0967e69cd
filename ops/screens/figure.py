"""Imports matplotlib for figures that are written to files. Modules that draw import its classes from here.

Writing a file needs no backend, so this module loads none. In a notebook MPLBACKEND may name a backend that
is not installed, so the variable is removed during the import and set again afterwards.
"""

import os

_VARIABLE = "MPLBACKEND"
_chosen = os.environ.pop(_VARIABLE, None)
try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter
finally:
    if _chosen is not None:
        os.environ[_VARIABLE] = _chosen  # child processes may draw, too

__all__ = ["Axes", "EngFormatter", "Figure"]
