"""Loading a pipeline: a Python file with an object named ``pipeline``, or a TOML file that says the same."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline import Pipeline

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_loaded_by_us: dict[str, ModuleType] = {}


class PipelineImportError(ConfigError):
    """The pipeline file raised. ``user_traceback`` is the user's own, without a frame of ours."""

    def __init__(self, message: str, user_traceback: str) -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


class LoadedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline and what came with it.

    ``modules_root`` is the folder whose modules travel to the workers with the operators; ``module_name`` is the
    pipeline file's own module, None for a TOML file.
    """

    pipeline: Pipeline
    settings_from_code: Mapping[str, object]
    modules_root: Path
    module_name: str | None
    path: Path


def load_pipeline(path: str | Path, env: Mapping[str, str] | None = None) -> LoadedPipeline:
    """Load a pipeline file; the ending decides how. ``env`` is what ``${VAR}`` of a TOML file means.

    A Python file is imported under its own stem, its folder first on ``sys.path``, and both stay so. Raises
    `PipelineImportError` when the file raises, `ConfigError` for everything else that is wrong with it.
    """
    file = Path(os.path.normpath(Path(path).absolute()))
    if not file.is_file():
        hint = "it is a directory" if file.is_dir() else "there is no such file"
        raise ConfigError(f"cannot read the pipeline {path}: {hint}; PIPELINE is a Python or TOML file")
    if file.suffix == ".toml":
        return _from_toml(file, env if env is not None else os.environ)
    if file.suffix != ".py":
        raise ConfigError(f"{path} is neither a .py nor a .toml file; PIPELINE is one of them")
    module = _import(file)
    pipeline = _pipeline_of(module, file)
    return LoadedPipeline(
        pipeline=pipeline,
        settings_from_code=_settings_of(pipeline),
        modules_root=file.parent,
        module_name=module.__name__,
        path=file,
    )


def _from_toml(file: Path, env: Mapping[str, str]) -> LoadedPipeline:
    from headrace.config.pipeline_toml import pipeline_from_toml  # noqa: PLC0415 - only TOML pipelines need it
    from headrace.config.toml_file import read_toml  # noqa: PLC0415 - as above

    _first_on_path(file.parent)
    pipeline, settings = pipeline_from_toml(read_toml(file, env))
    return LoadedPipeline(
        pipeline=pipeline, settings_from_code=settings, modules_root=file.parent, module_name=None, path=file
    )


def _settings_of(pipeline: Pipeline) -> dict[str, object]:
    settings = dict(pipeline.settings or {})
    if pipeline.on_error is not None:
        settings.setdefault("on_error", pipeline.on_error)
    return settings


def _pipeline_of(module: ModuleType, file: Path) -> Pipeline:
    from headrace.pipeline import Pipeline  # noqa: PLC0415 - the pipeline file imports it anyway

    found = getattr(module, "pipeline", None)
    if isinstance(found, Pipeline):
        return found
    if found is not None:
        raise ConfigError(f"{file.name}: `pipeline` is a {type(found).__name__}, not a headrace.Pipeline")
    others = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
    hint = f"; rename `{others[0]}`" if others else "; end the file with `pipeline = Pipeline(…)`"
    raise ConfigError(f"{file.name} has no object named `pipeline`{hint}")


def _import(file: Path) -> ModuleType:
    name = file.stem
    _check_name(name, file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    _first_on_path(file.parent)
    importlib.invalidate_caches()
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises is told as theirs
        sys.modules.pop(name, None)
        raise _import_error(file, error) from None
    _loaded_by_us[name] = module
    return module


def _check_name(name: str, file: Path) -> None:
    """Workers find the module by this name, so nothing else may have it."""
    if "." in name or name in ("__main__", "__init__"):
        raise ConfigError(f"{file.name}: a module cannot be called {name}; rename the file")
    known = sys.modules.get(name)
    if known is not None and known is _loaded_by_us.get(name):
        del sys.modules[name]
    elif known is not None or name in sys.stdlib_module_names:
        where = getattr(known, "__file__", None) or "part of Python"
        raise ConfigError(f"{file.name} would hide the module {name} ({where}); give the file another name")


def _first_on_path(folder: Path) -> None:
    text = str(folder)
    if not sys.path or sys.path[0] != text:
        sys.path.insert(0, text)


def import_named(name: str, where: str) -> ModuleType:
    """Import a module that a TOML pipeline names. Raises as `load_pipeline` does."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"{where}: there is no module {error.name}; modules lie beside the file") from None
        raise PipelineImportError(f"{where}: {error}", _without_our_frames(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as in `_import`
        raise PipelineImportError(f"{where}: {error}", _without_our_frames(error)) from None


def _import_error(file: Path, error: BaseException) -> ConfigError:
    line = _line_in(file, error.__traceback__)
    if isinstance(error, HeadraceError):
        return ConfigError(f"{file.name}, line {line}: {error}" if line else f"{file.name}: {error}")
    place = f"{file.name}, line {line}" if line else file.name
    told = "".join(traceback.format_exception_only(error)).strip().rpartition("\n")[2]
    return PipelineImportError(f"{place}: {told}", _without_our_frames(error))


def _line_in(file: Path, trace: TracebackType | None) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == str(file)]
    return lines[-1] if lines else None


def _without_our_frames(error: BaseException) -> str:
    told = traceback.TracebackException.from_exception(error)
    _strip(told, set())
    return "".join(told.format())


def _strip(told: traceback.TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    kept = [frame for frame in told.stack if not _is_machinery(frame.filename)]
    told.stack = traceback.StackSummary.from_list(kept)
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _strip(other, seen)


def _is_machinery(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen importlib"))
