"""`dppo-redis export`: writes a run's policy into files that other programs read without this package."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dppo_redis.artefacts.exports import ARRAYS, DESCRIPTION, GRAPH, Export, is_replaceable, write_export
from dppo_redis.errors import ConfigurationError, ExitStatus, StoppedError
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.logs import answer, configure
from dppo_redis.service.shutdown import StopRequest
from ops.policies.load_policy import LoadedPolicy, load_policy
from ops.policies.which_run import find_run_directory

_INSTALL = "pip install onnx onnxscript"


@dataclass(frozen=True)
class ExportOptions:
    """Write a trained policy as safetensors, JSON and ONNX."""

    to: Path
    """Directory for the export"""
    run_dir: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")] = None
    """Directory of a run, or the name of a run in runs/"""
    run: str | None = None
    """Name of a run in runs/, instead of RUN_DIR"""
    checkpoint: str = "best"
    """Which policy: best (of the evaluations), last (checkpoint), or a checkpoint file"""
    onnx: Literal["auto", "yes", "no"] = "auto"
    """Also write an ONNX graph; auto: if the extra `onnx` is installed"""
    overwrite: bool = False
    """Replace an earlier export"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Raises:
        ConfigurationError: an option, the directory or the target cannot be used.
    """
    configure("export")
    options = parse_arguments(ExportOptions, argv, "dppo-redis export")
    directory = find_run_directory(options.run_dir, options.run)
    _check_target(options)
    with_graph = _wants_graph(options.onnx)
    stop = StopRequest().install()
    try:
        loaded = load_policy(directory, options.checkpoint, stop, to_play=False)
    except StoppedError:
        return stop.exit_status
    loaded.policy()  # checks that the weights fit the spec
    extra: dict[str, Any] = {"checkpoint": loaded.checkpoint}
    add_graph(options.to, loaded, extra, wanted=with_graph)
    write_export(options.to, Export(loaded.run, loaded.description.spec, loaded.weights), extra=extra)
    files = [ARRAYS, DESCRIPTION, *([extra["onnx"]["file"]] if with_graph else [])]
    answer(
        f"{loaded.run}, {loaded.checkpoint} ({loaded.weights.trained_steps:,} steps): "
        f"wrote {', '.join(files)} to {options.to}"
    )
    if not with_graph and options.onnx == "auto":
        answer(f"no ONNX graph was written, as packages are missing (extra `onnx`): {_INSTALL}")
    return ExitStatus.DONE


def _check_target(options: ExportOptions) -> None:
    target = options.to
    if target.exists() and not target.is_dir():
        raise ConfigurationError(f"--to {target} is a file: name a directory")
    if not target.exists() or not any(target.iterdir()):
        return
    if not is_replaceable(target):
        raise ConfigurationError(
            f"--to {target} holds other files than those of an export: choose another directory"
        )
    if not options.overwrite:
        raise ConfigurationError(f"--to {target} holds an export: pass --overwrite or another directory")


def _wants_graph(onnx: str) -> bool:
    """Whether to write a graph. Without a graph, torch is not imported."""
    if onnx == "no":
        return False
    from ops.policies.onnx_graph import is_installed

    if onnx == "yes" and not is_installed():
        raise ConfigurationError(f"--onnx yes needs missing packages (extra `onnx`): {_INSTALL}")
    return is_installed()


def add_graph(target: Path, loaded: LoadedPolicy, extra: dict[str, Any], *, wanted: bool) -> None:
    """Write the graph, if wanted, and its entry in the description. Remove the graph of an earlier export.

    The new graph is complete before the earlier export is changed, since the exporter refuses some networks.

    Raises:
        ConfigurationError: the export cannot be written.
    """
    graph, unfinished = target / GRAPH, target / f"{GRAPH}.writing"
    try:
        target.mkdir(parents=True, exist_ok=True)
        if wanted:
            from ops.policies.onnx_graph import write_graph

            extra["onnx"] = {
                "file": GRAPH,
                **write_graph(unfinished, loaded.weights, loaded.description.spec),
            }
            unfinished.replace(graph)
        else:
            graph.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the export {target}: {error.strerror}: choose another --to"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
