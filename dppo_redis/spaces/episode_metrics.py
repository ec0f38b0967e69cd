"""Reads the numbers that an environment reports at an episode's end: `is_success`, and those under `metrics`.

They come from `info` of one environment or of a vector, and become arrays. The user's code chooses the names.
Only short identifiers are kept, and a character that separates words becomes `_`. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dppo_redis.spaces.metric_names import MAX_NAME, MAX_NAMES, is_name

SUCCESS = "is_success"
METRICS = "metrics"
REPORTED = "dppo_episode"  # key of an info under which PlainEnvironment hands an EpisodeMetrics to its vector
_MOST_ENTRIES = 1000  # of one info; further ones are ignored
_MOST_REFUSED = 8  # names that are shown
_SEPARATORS = str.maketrans("-./: ", "_____")
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
MetricArrays = Mapping[str, npt.NDArray[np.float64]]  # name -> [E], NaN where an episode has none


class EpisodeMetrics(NamedTuple):
    """The metrics of one episode, and the names that were refused."""

    numbers: tuple[tuple[str, float], ...] = ()  # finite, each name once
    refused: tuple[str, ...] = ()  # the first names that cannot be used, as they may be printed


NOTHING = EpisodeMetrics()


def read_episode(info: object) -> EpisodeMetrics:
    """The finite numbers that the last `info` of an episode holds; flags count as 0 and 1.

    Values that are no finite numbers are left out. A name that cannot be used is refused; the others stay.
    If a class of the user's raises while its mapping or value is read, the result is empty.
    """
    try:
        return _read_episode(info)
    except Exception:  # noqa: BLE001 the user's code may raise anything
        return NOTHING


def _read_episode(info: object) -> EpisodeMetrics:
    if not isinstance(info, Mapping) or not (SUCCESS in info or METRICS in info):
        return NOTHING
    reported = info.get(METRICS)
    pairs = [(SUCCESS, info.get(SUCCESS))]
    if isinstance(reported, Mapping):
        pairs += islice(reported.items(), _MOST_ENTRIES)
    numbers: dict[str, float] = {}
    refused: list[str] = []
    for raw, value in pairs:
        number = _number(value)
        if number is None:
            continue
        name = raw.translate(_SEPARATORS) if isinstance(raw, str) and len(raw) <= MAX_NAME else ""
        if is_name(name) and name not in numbers and len(numbers) < MAX_NAMES:
            numbers[name] = number
        elif len(refused) < _MOST_REFUSED:
            refused.append(_printed(raw))
    return EpisodeMetrics(tuple(numbers.items()), tuple(refused))


def _number(value: object) -> float | None:
    """The value as a finite number (an array of one number counts); None if it is not one."""
    try:
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        if not isinstance(value, _NUMBERS):
            return None
        number = float(value)
    except Exception:  # noqa: BLE001 too large for a float, or a class of the user's that raises
        return None
    return number if math.isfinite(number) else None


def _printed(name: object) -> str:
    """A name of any type and length, in a form for logs."""
    return ascii(name[:MAX_NAME]) if isinstance(name, str) else f"a {type(name).__name__}"


def read_vector(
    infos: Mapping[str, Any], places: Sequence[int], is_reset: bool
) -> tuple[EpisodeMetrics, ...]:
    """The metrics of each environment whose episode ended, in the order of `places`.

    Args:
        infos: of a vector step: made by PlainEnvironment, stacked by gymnasium, or one mapping for each.
        places: indices of the environments whose episodes ended.
        is_reset: they were reset in the same step, so that their metrics are under `final_info`.
    """
    if not reports(infos, is_reset):
        return (NOTHING,) * len(places)
    source = infos.get("final_info", infos) if is_reset else infos
    return tuple(_of_place(source, place) for place in places)


def reports(infos: Mapping[str, Any], is_reset: bool) -> bool:
    """Whether any environment may have reported something; arguments as for `read_vector`."""
    source = infos.get("final_info", infos) if is_reset else infos
    return not isinstance(source, Mapping) or REPORTED in source or SUCCESS in source or METRICS in source


def _of_place(source: Any, place: int) -> EpisodeMetrics:
    try:
        if not isinstance(source, Mapping):
            return read_episode(source[place])
        if REPORTED in source:
            ours = source[REPORTED][place]
            return ours if isinstance(ours, EpisodeMetrics) else NOTHING
        reported = source.get(METRICS)
        if isinstance(reported, Mapping):
            reported = {name: _at(reported, name, place) for name in _stacked_names(reported)}
        elif reported is not None:
            reported = _at(source, METRICS, place)
        return read_episode({SUCCESS: _at(source, SUCCESS, place), METRICS: reported})
    except (TypeError, IndexError, KeyError, ValueError):  # stacked in a way that is not gymnasium's
        return NOTHING


def _stacked_names(stacked: Mapping[Any, Any]) -> list[Any]:
    """Names of values, without gymnasium's masks, which have the same names after an underscore."""
    names = islice(stacked, 2 * _MOST_ENTRIES)
    return [name for name in names if not (isinstance(name, str) and name[:1] == "_" and name[1:] in stacked)]


def _at(stacked: Mapping[Any, Any], name: Any, place: int) -> Any:
    """The value of one environment; None if gymnasium's mask says that it has none."""
    mask = stacked.get(f"_{name}") if isinstance(name, str) else None
    if name not in stacked or (mask is not None and not mask[place]):
        return None
    return stacked[name][place]


def to_arrays(episodes: Sequence[EpisodeMetrics], names: Iterable[str]) -> MetricArrays:
    """Arrays [E] of the numbers of E episodes under these names; none of a name that no episode has."""
    arrays = {name: np.full(len(episodes), np.nan) for name in names}
    found = set()
    for row, episode in enumerate(episodes):
        for name, number in episode.numbers:
            if name in arrays:
                arrays[name][row] = number
                found.add(name)
    return {name: array for name, array in arrays.items() if name in found}


def to_episodes(arrays: MetricArrays, ended: int) -> list[dict[str, float]]:
    """Inverse of `to_arrays`: the metrics of each of E episodes."""
    episodes: list[dict[str, float]] = [{} for _ in range(ended)]
    for name, array in arrays.items():
        for row in np.flatnonzero(~np.isnan(array)):
            episodes[row][name] = float(array[row])
    return episodes


def means(episodes: Iterable[Mapping[str, float]], names: Iterable[str] | None = None) -> dict[str, float]:
    """The mean of each number over the episodes that have it, in order of first appearance or of `names`."""
    values: dict[str, list[float]] = {} if names is None else {name: [] for name in names}
    for episode in episodes:
        for name, number in episode.items():
            if names is None and len(values) < MAX_NAMES:
                values.setdefault(name, [])
            if name in values:
                values[name].append(number)
    return {name: math.fsum(of) / len(of) for name, of in values.items() if of}
