"""The pipeline's own modules on their way to workers: their sources as they were at start, under the same names.

A worker imports them from what it was sent, never from the disk, which a deploy may have changed meanwhile. The own
modules are those that lie under the pipeline's folder, less installed packages; among them are those that are named in
an import which has not run yet.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, cast

import msgspec

from headrace.errors import ConfigError

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_OURS: Final = frozenset({"headrace", "headrace_workers", "__main__", "__mp_main__"})


class CarriedModule(msgspec.Struct, frozen=True):
    """A module by value. ``source`` is None for a folder without ``__init__.py``."""

    name: str
    path: str
    is_package: bool
    source: bytes | None


def own_modules(root: Path) -> list[CarriedModule]:
    """The modules under ``root`` that are imported or named in their imports. Raises `ConfigError`."""
    folder = _Folder(root.resolve())
    found: dict[str, CarriedModule] = {}
    loaded = [folder.loaded(name, module) for name, module in list(sys.modules.items())]
    waiting = [module for module in loaded if module is not None]
    while waiting:
        module = waiting.pop()
        if module.name in found:
            continue
        found[module.name] = module
        waiting += [other for name in _imports(module) for other in folder.named(name)]
    return sorted(found.values(), key=lambda module: module.name)


class _Folder:
    """Finds modules under one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stdlib = Path(sysconfig.get_path("stdlib")).resolve()

    def loaded(self, name: str, module: ModuleType) -> CarriedModule | None:
        """A module that is imported, if it lies here."""
        if name.partition(".")[0] in _OURS:
            return None
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            path = Path(file)
            if path.suffix != ".py" or not self._is_here(path.resolve()):
                return None
            return _read(name, path, is_package=hasattr(module, "__path__"))  # its functions know it by this path
        for entry in _entries(module):
            if self._is_here(Path(entry).resolve()):
                return CarriedModule(name, entry, True, None)
        return None

    def named(self, name: str) -> Iterator[CarriedModule]:
        """The module and packages of a dotted name, as far as they lie here."""
        words = name.split(".")
        top = sys.modules.get(words[0])
        if words[0] in _OURS or (top is not None and self.loaded(words[0], top) is None):
            return
        folder = self._root
        for number, word in enumerate(words, start=1):
            dotted = ".".join(words[:number])
            if (file := folder / f"{word}.py").is_file():
                yield _read(dotted, file, is_package=False)
                return
            folder /= word
            if (file := folder / "__init__.py").is_file():
                yield _read(dotted, file, is_package=True)
            elif folder.is_dir() and number < len(words):
                yield CarriedModule(dotted, str(folder), True, None)
            else:
                return

    def _is_here(self, path: Path) -> bool:
        if not path.is_relative_to(self._root) or path.is_relative_to(self._stdlib):
            return False
        return not _INSTALLED & set(path.relative_to(self._root).parts)


def _entries(module: ModuleType) -> list[str]:
    return [str(entry) for entry in cast("Iterable[object]", getattr(module, "__path__", None) or ())]


def _read(name: str, path: Path, *, is_package: bool) -> CarriedModule:
    try:
        return CarriedModule(name, str(path), is_package, path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the source of the module {name} cannot be sent to the workers: {error}") from None


def _imports(module: CarriedModule) -> list[str]:
    """All names that the module's imports could mean, those inside functions included."""
    if module.source is None:
        return []
    try:
        tree = ast.parse(module.source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # it is told when the module is imported
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
    return names


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    words = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*words, *filter(None, [node.module])])


class _CarriedImporter(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from what was sent."""

    def __init__(self, modules: Iterable[CarriedModule]) -> None:
        self._modules = {module.name: module for module in modules}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002 - the protocol's
    ) -> importlib.machinery.ModuleSpec | None:
        module = self._modules.get(fullname)
        if module is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, None if module.source is None else self, origin=module.path, is_package=module.is_package
        )
        spec.has_location = module.source is not None
        if module.is_package:
            folder = Path(module.path) if module.source is None else Path(module.path).parent
            spec.submodule_search_locations = [str(folder)]
        return spec

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._bytes(fullname))

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._bytes(fullname), self._modules[fullname].path, "exec", dont_inherit=True)
        return code

    def is_package(self, fullname: str) -> bool:
        return self._modules[fullname].is_package

    def exec_module(self, module: ModuleType) -> None:
        path = self._modules[module.__name__].path
        source = self.get_source(module.__name__)
        # Tracebacks show the source that runs, whatever the file holds by now.
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - it is the supervisor's own module

    def _bytes(self, fullname: str) -> bytes:
        source = self._modules[fullname].source
        if source is None:
            raise ImportError(f"{fullname} is a folder", name=fullname)
        return source


def install(modules: Iterable[CarriedModule]) -> None:
    """From now on these are imported from here, in place of those installed before."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _CarriedImporter)]
    sys.meta_path.insert(0, _CarriedImporter(modules))
