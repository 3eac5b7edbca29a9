"""Operators as pure JAX functions, a file for each family. Importing this package registers all operators."""

import importlib
import pkgutil

from jfluid.ir import schema as _hook
from jfluid.ops import registry as _registry
from jfluid.ops.schema import RegistrySchema

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
_registry.note_built_in()
_hook.install(RegistrySchema())
