"""etcd3's messages and stubs, with any release of protobuf. Everything of etcd3 is imported through this module.

The generated modules in the package etcd3 0.12 register their descriptors in a way that protobuf 4.21 and newer refuse
("Descriptors cannot be created directly"). But they contain the serialized descriptors. These are read from their
source, without running it, and the classes made of them stand where etcd3 imports its own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

__all__ = ["etcdrpc"]

_PACKAGE = "etcd3.etcdrpc"
_MODULES = ("kv_pb2", "auth_pb2", "rpc_pb2")
"""In the order of their dependencies."""


def _serialized(source: str) -> bytes:
    """Return the serialized FileDescriptorProto that a generated module contains. Raises ImportError without one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb" and isinstance(node.value, ast.Call):
            text = ast.literal_eval(node.value.args[0])
            return text if isinstance(text, bytes) else text.encode("latin-1")
    raise ImportError("a generated module of etcd3 has no serialized descriptor: is this etcd3 0.12?")


def _module(name: str, serialized: bytes, pool: descriptor_pool.DescriptorPool) -> ModuleType:
    """Return a module with the message classes and enums of one file."""
    described = descriptor_pb2.FileDescriptorProto.FromString(serialized)
    pool.Add(described)
    file = pool.FindFileByName(described.name)
    made = ModuleType(name)
    for each, descriptor in file.message_types_by_name.items():
        setattr(made, each, message_factory.GetMessageClass(descriptor))
    for each, descriptor in file.enum_types_by_name.items():
        setattr(made, each, EnumTypeWrapper(descriptor))
        for value in descriptor.values:
            setattr(made, value.name, value.number)
    return made


def _load() -> Any:
    found = importlib.util.find_spec("etcd3")
    if found is None or found.origin is None:
        raise ImportError("the package etcd3 is not installed")
    folder = Path(found.origin).parent / "etcdrpc"
    pool = descriptor_pool.DescriptorPool()
    for each in _MODULES:
        name = f"{_PACKAGE}.{each}"
        if name not in sys.modules:
            source = (folder / f"{each}.py").read_text(encoding="utf-8")
            sys.modules[name] = _module(name, _serialized(source), pool)
    return importlib.import_module(_PACKAGE)


etcdrpc: Any = _load()
