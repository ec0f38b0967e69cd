"""matplotlib for figures that go into files: what draws one imports it from here.

Files need no backend, so none is loaded, whatever MPLBACKEND or the user's code has chosen. A notebook's
variable may name one that is not installed: matplotlib is imported without it.
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
        os.environ[_VARIABLE] = _chosen  # children of ours may have figures of their own

__all__ = ["Axes", "EngFormatter", "Figure"]
