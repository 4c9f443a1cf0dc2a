"""The modules that the fork server imports, and the environment variables that these imports have read.

Variables read by Python code are recorded during the imports; variables read by native code are listed here.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

AT_START = re.compile("PYTHON|LD_|MALLOC_|GLIBC_|LC_|LANG")
"""Variables that are read before a script begins: python(1), ld.so(8), mallopt(3), locale(7)."""
AT_IMPORT = re.compile(
    # Read by the OpenMP runtimes when they are loaded: "Environment Variables" of the manual of libgomp, and
    # of LLVM's and Intel's ("Supported Environment Variables").
    "OMP_|GOMP_|ACC_|KMP_"
    # Read by torch's MKL and oneDNN and by NumPy's OpenBLAS when they are loaded, and some at their first
    # use.
    "|MKL_|MKLDNN_|ONEDNN_|DNNL_|OPENBLAS_|GOTO_|NPY_|NUMPY_|GFORTRAN_"
    # Read by libc10 and libtorch when they are loaded, such as TORCH_SHOW_CPP_STACKTRACES and
    # PYTORCH_ALLOC_CONF (BackendStaticInitializer in c10/cuda/CUDACachingAllocator.cpp), some at the first
    # use. ProcessGroupNCCL reads TORCH_NCCL_* when it is created, and NCCL then reads its own NCCL_*.
    "|PYTORCH_|TORCH_(?!NCCL_)|ATEN_|KINETO_"
    # MKL reads these variables of MPI; the others belong to libraries in torch: Intel's tracing, OpenSSL.
    "|I_MPI_|OMPI_|MPI_|INTEL_LIBITTNOTIFY|OPENSSL_"
    # Read at CUDA's first call, which an import may make: pytorch/pytorch#80876.
    "|CUDA_|HIP_|ROCR_"
)
"""Variables that native code reads while torch is imported. A test finds them by replacing getenv(), for
torch 2.13 for the CPU and NumPy 2.2; those of code that this build lacks come from torch's source."""
_LISTED = re.compile("TQDM_|FSSPEC_")
"""Variables that a package finds by listing all variables: ``envwrap`` in tqdm/utils.py, ``set_conf_env``
in fsspec/config.py."""
BEFORE_TORCH = "comet_ml"
"""The package that must be imported before torch, according to Comet's documentation on PyTorch."""
_OF_SHELLS = frozenset(("PWD", "OLDPWD", "SHLVL", "_"))
"""Variables that a shell sets when it starts a script."""


class _Recorder(os._Environ[str]):  # noqa: SLF001 - the type of os.environ
    """``os.environ`` during the recording of an import."""

    def __getitem__(self, key: str) -> str:
        _counts[key] += 1
        return super().__getitem__(key)


_counts = Counter[str]()


@dataclass
class Reads:
    """The variables that Python code has read, including unset ones."""

    names: set[str] = field(default_factory=set)
    has_listed: bool = False
    """Whether the code has also listed all variables at once, which does not show which variables it uses."""


@contextlib.contextmanager
def recording() -> Iterator[Reads]:
    """Record the variables that are read in the block; ``Reads`` is complete when the block ends."""
    global _counts
    _counts, kind, present = Counter(), type(os.environ), {*os.environ}
    os.environ.__class__ = _Recorder
    reads = Reads()
    try:
        yield reads
    finally:
        os.environ.__class__ = kind
        num_lists = min((_counts[name] for name in present), default=0)
        reads.has_listed = num_lists > 0
        reads.names |= {one for one, count in _counts.items() if one not in present or count > num_lists}


def differing(names: set[str], here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the variables whose values in ``here`` and ``there`` differ, in order."""
    return sorted(name for name in names - _OF_SHELLS if here.get(name) != there.get(name))


@dataclass
class Preloaded:
    """The modules that this process has imported for its programs, in order."""

    names: list[str] = field(default_factory=list)
    changed: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """The variables that each import set, or removed (None), by the import's name."""
    _readers: dict[str, set[str]] = field(default_factory=dict)
    _listers: set[str] = field(default_factory=set)
    """The imports that listed all variables at once."""
    _imports: dict[str, set[str]] = field(default_factory=dict)
    """The packages imported by the modules of each package."""

    def add(self, name: str) -> None:
        """Import a module, or an object in a module, such as ``transformers.Trainer``.

        Raises:
            Exception: any exception that the import raises.
        """
        before, modules = dict(os.environ), {*sys.modules}
        try:
            with recording() as read, self._noting_imports():
                pkgutil.resolve_name(name)
        finally:
            self.names.append(name)
            for variable in read.names:
                self._readers.setdefault(variable, set()).add(name)
            new = {module.partition(".")[0] for module in {*sys.modules} - modules}
            self._imports.setdefault(name.partition(".")[0], set()).update(new)
            self._listers |= {name} if read.has_listed else set()
            after = dict(os.environ)
            differ = (one for one in {*before, *after} if before.get(one) != after.get(one))
            self.changed[name] = {one: after.get(one) for one in differ}

    @contextlib.contextmanager
    def _noting_imports(self) -> Iterator[None]:
        import_ = builtins.__import__

        def noting(
            name: str,
            globals: Any = None,  # noqa: A002 - callers may name them
            locals: Any = None,  # noqa: A002
            fromlist: Any = (),
            level: int = 0,
        ) -> Any:
            if level == 0 and globals is not None:
                importer = str(globals.get("__name__")).partition(".")[0]
                self._imports.setdefault(importer, set()).add(name.partition(".")[0])
            return import_(name, globals, locals, fromlist, level)

        builtins.__import__ = noting
        try:
            yield
        finally:
            builtins.__import__ = import_

    def imported_with(self, package: str) -> set[str]:
        """Return the packages that importing ``package`` imports, including itself."""
        found, to_follow = set[str](), {package}
        while to_follow:
            found |= to_follow
            to_follow = set[str]().union(*(self._imports.get(one, ()) for one in to_follow)) - found
        return found

    def readers(self, variable: str) -> set[str]:
        """Return the imports that have read the variable or may have read it."""
        native = {"torch"} if AT_IMPORT.match(variable) else set()
        listers = self._listers if _LISTED.match(variable) else set()
        return native | listers | self._readers.get(variable, set())

    def why_not(self, here: Mapping[str, str], there: Mapping[str, str]) -> str:
        """Return why a program with the variables ``there`` must repeat the imports, or an empty string."""
        for name in differing({*here, *there}, here, there):
            if AT_START.match(name):
                return f"{name} differs, and Python reads it before the program starts"
            if self.readers(name):
                return f"{name} differs, and was read when {min(self.readers(name))} was imported"
        return ""

    def packages(self) -> dict[str, str]:
        """Return each imported package's file, without packages of the standard library."""
        origins = {}
        for name, module in list(sys.modules.items()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if "." not in name and name not in sys.stdlib_module_names and origin is not None:
                origins[name] = os.path.realpath(origin)
        return origins
