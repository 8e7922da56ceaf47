"""Custom operators as an arm sees them: what its tree registers lives in namespaces of the arm's own."""

from __future__ import annotations

import ast
import re
import types
from typing import TYPE_CHECKING, Any

from difftest.lift.source import SourceModule

if TYPE_CHECKING:
    from difftest.lift.loader import ArmModule, Loader

REGISTRATION = re.compile(r"custom_op|\bimpl\b|define|infer_schema")
_OPERATOR = re.compile(r"(?P<namespace>[A-Za-z_]\w*)::(?P<rest>\w+(\.\w+)?\s*(\(.*)?)", re.DOTALL)
_MAKES_NAMESPACE = re.compile(
    rb"(?:custom_op|triton_op|\bdefine)\(\s*[\"'](\w+)::|Library\(\s*[\"'](\w+)[\"']\s*,\s*[\"'](?:DEF|FRAGMENT)"
)
_TORCH_AS = re.compile(rb"\btorch\s+as\s+(\w+)")
TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "c10d", "quantized", "higher_order", "torchvision", "inductor"})


def registered_namespaces(source: SourceModule) -> set[str]:
    """Operator namespaces that a file adds operators to, torch's own left out."""
    found = {(a or b).decode() for a, b in _MAKES_NAMESPACE.findall(source.data)}
    return found - TORCH_NAMESPACES


class Operators:
    """`torch.ops` as an arm sees it: operators that its tree registers are the arm's own."""

    def __init__(self, loader: Loader, module: ArmModule) -> None:
        self._loader = loader
        self._module = module

    def __getattr__(self, name: str) -> Any:
        import torch

        if name.startswith("__") or name in TORCH_NAMESPACES or not hasattr(torch.ops, "aten"):
            return getattr(torch.ops, name)
        found: Any = getattr(torch.ops, name)
        if isinstance(found, types.ModuleType):  # a namespace, and not a function of torch.ops itself
            found = _Namespace(self._loader, self._module, name, found)
        self.__dict__[name] = found
        return found


class _Namespace:
    """One namespace of operators: the arm's own ones first, then what the process has registered."""

    def __init__(self, loader: Loader, module: ArmModule, name: str, outside: Any) -> None:
        self._loader = loader
        self._module = module
        self._name = name
        self._outside = outside

    def __getattr__(self, operator: str) -> Any:
        if operator.startswith("__"):
            raise AttributeError(operator)
        import torch

        self._loader.register_operator(self._module, self._name, operator)
        own = getattr(torch.ops, self._loader.own_namespace(self._name))
        if hasattr(own, operator):
            found = getattr(own, operator)
        else:
            found = getattr(self._outside, operator, None) or self._loader.operator(self._name, operator)
        if found is None:
            self._loader.missed(self._name, operator)
            found = getattr(self._outside, operator)  # says that it is not there
        self.__dict__[operator] = found
        return found


def concerns_operators(node: ast.AST) -> bool:
    """Whether a node may be what :class:`OperatorNamespaces` changes."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and "::" in node.value
    if isinstance(node, ast.Attribute):
        return node.attr in ("ops", "Library")
    if isinstance(node, ast.ImportFrom):
        return node.module == "torch" and any(alias.name == "ops" for alias in node.names)
    return isinstance(node, ast.Name) and node.id == "Library"


class OperatorNamespaces(ast.NodeTransformer):
    """Gives the tree's custom operators a namespace of the arm's own, so that both arms can register theirs."""

    def __init__(self, loader: Loader, source: SourceModule) -> None:
        self.loader = loader
        self.torch = {"torch", *(name.decode() for name in _TORCH_AS.findall(source.data))}

    def _owned(self, namespace: str) -> bool:
        return namespace in self.loader.namespaces or self.loader.sources.owns(namespace)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        named = _OPERATOR.fullmatch(node.value) if isinstance(node.value, str) else None
        if named and self._owned(named["namespace"]):
            text = f"{self.loader.own_namespace(named['namespace'])}::{named['rest']}"
            return ast.copy_location(ast.Constant(text), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "ops" and isinstance(node.value, ast.Name) and node.value.id in self.torch:
            return ast.copy_location(ast.Name("__difftest_ops__", ast.Load()), node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """`from torch import ops` binds the arm's own."""
        if not concerns_operators(node):
            return node
        rest = [alias for alias in node.names if alias.name != "ops"]
        body: list[ast.stmt] = [ast.ImportFrom(node.module, rest, node.level)] if rest else []
        bound: list[ast.expr] = [ast.Name(a.asname or a.name, ast.Store()) for a in node.names if a.name == "ops"]
        body.append(ast.Assign(bound, ast.Name("__difftest_ops__", ast.Load())))
        return ast.fix_missing_locations(ast.copy_location(ast.If(ast.Constant(True), body, []), node))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        first = node.args[0] if name == "Library" and node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and self._owned(first.value):
            first.value = self.loader.own_namespace(first.value)
        return node
