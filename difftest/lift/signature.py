"""What a function takes, read from its source: names, annotations, defaults, comments that give a shape. No execution.

The result is plain data, so that it can be sent to the worker, which makes cases of it (`cases/signature.py`).
"""

from __future__ import annotations

import ast
import re
from typing import Any, NotRequired, TypedDict

from difftest.lift.sources import Sources
from difftest.lift.statements import FunctionNode, last_name, root_name
from difftest.lift.syntax import source_lines

Kind = dict[str, Any]
"""What a value is: `kind`, and `of` (of what a list, tuple or dict is), `values` of a literal, or of a class of the
tree its `symbol` and `fields`."""


class Parameter(TypedDict):
    """One parameter of a function, or field of a class.

    Attributes:
        kinds: what it may be, of what is known; nothing when none of it is.
        annotation: as written; empty when there is none.
        default: whether it may be left out.
        dims: names of its axes, of a comment `# [num_tokens, vocab_size]` or of `rows, columns = name.shape`.
    """

    name: str
    kinds: list[Kind]
    annotation: str
    default: bool
    dims: NotRequired[list[str]]


class Signature(TypedDict):
    """What is known of a callable of one tree.

    Attributes:
        refusal: why no call of it can be made; empty when one can.
        owner: of an instance method, how its object is made.
    """

    parameters: list[Parameter]
    refusal: str
    owner: NotRequired[Kind]


_PLAIN = {
    "int": "int", "float": "float", "bool": "bool", "str": "str", "None": "none", "SupportsInt": "int",
    "Tensor": "tensor", "FloatTensor": "tensor", "LongTensor": "tensor", "IntTensor": "tensor", "BoolTensor": "tensor",
    "Generator": "generator", "dtype": "dtype", "device": "device", "ndarray": "ndarray", "NDArray": "ndarray",
}  # fmt: skip
_LISTS = frozenset({"list", "List", "Sequence", "Iterable", "Collection", "MutableSequence"})
_DICTS = frozenset({"dict", "Dict", "Mapping", "MutableMapping"})
_USUAL = (
    (r"vocab_size|batch_size|num_(reqs|tokens|rows)|max_spec_len|num_speculative_(tokens|steps)", "int"),
    (r".*(logits|probs|logprobs|temperatures?|top_[kp]|min_p|token_ids|indices|_mask|penalties)|seeds?", "tensor"),
    (r"generator", "generator"),
    (r"device", "device"),
    (r"dtype", "dtype"),
)
_DEPTH = 4
_SHAPE = re.compile(r"#.*?\[([\w +*/\-,.]+)\]")


def signature_of(sources: Sources, symbol: str) -> Signature:
    """The signature of `module:qualname` in one tree.

    Raises:
        LiftError: a file on the way cannot be parsed.
    """
    return _Reader(sources).signature(symbol)


def conflict(base: Signature, head: Signature) -> str:
    """Why one pool of inputs cannot serve both versions; empty when it can."""
    ours, theirs = _by_name(base), _by_name(head)
    for name, parameter in ours.items():
        other = theirs.get(name)
        if other is None and not parameter["default"]:
            return f"api-change: head does not take {name}, which base requires"
        if other is not None and parameter["kinds"] and other["kinds"] and not _shared(parameter, other):
            return (
                f"api-change: {name} is {parameter['annotation'] or 'unannotated'} in base and "
                f"{other['annotation'] or 'unannotated'} in head"
            )
    for name, parameter in theirs.items():
        if name not in ours and not parameter["default"]:
            return f"api-change: head requires {name}, which base does not take"
    return ""


def merged(base: Signature, heads: list[Signature]) -> Signature:
    """What all versions take: base's parameters as far as the heads have them too, of kinds that all of them know."""
    found = []
    for parameter in base["parameters"]:
        others = [_by_name(head).get(parameter["name"]) for head in heads]
        if parameter["default"] and not all(others):
            continue
        known = [other for other in others if other is not None and other["kinds"]]
        kinds = parameter["kinds"] or (known[0]["kinds"] if known else [])
        for other in known:
            kinds = [kind for kind in kinds if kind["kind"] in {k["kind"] for k in other["kinds"]}]
        found.append(Parameter({**parameter, "kinds": kinds}))
    return Signature({**base, "parameters": found})


def unmakeable(signature: Signature) -> str:
    """The first thing that a call needs and that no value is known for, in words; empty when there is none."""
    if signature["refusal"]:
        return signature["refusal"]
    owner = signature.get("owner")
    inner = _missing(owner["fields"], f"{owner['symbol']}.") if owner is not None else ""
    return inner or _missing(signature["parameters"], "")


def _missing(parameters: list[Parameter], prefix: str) -> str:
    for parameter in parameters:
        if not parameter["kinds"] and not parameter["default"]:
            annotation = parameter["annotation"]
            what = f"annotated {annotation}" if annotation else "not annotated"
            return f"no value is known for the parameter {prefix}{parameter['name']}, which is {what}"
    return ""


def symbols_in(signature: Signature) -> tuple[str, ...]:
    """Classes of the tree that its inputs are instances of."""
    found: dict[str, None] = {}

    def walk(kind: Kind) -> None:
        if kind["kind"] == "made":
            found[kind["symbol"]] = None
        for inner in kind.get("of", ()):
            for alternative in inner:
                walk(alternative)
        for field in kind.get("fields", ()):
            for alternative in field["kinds"]:
                walk(alternative)

    for kind in [signature["owner"]] if "owner" in signature else []:
        walk(kind)
    for parameter in signature["parameters"]:
        for kind in parameter["kinds"]:
            walk(kind)
    return tuple(found)


def _by_name(signature: Signature) -> dict[str, Parameter]:
    return {parameter["name"]: parameter for parameter in signature["parameters"]}


def _shared(one: Parameter, other: Parameter) -> bool:
    return not {k["kind"] for k in one["kinds"]}.isdisjoint(k["kind"] for k in other["kinds"])


class _Reader:
    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def signature(self, symbol: str) -> Signature:
        located = self.sources.locate(symbol)
        module = None if located is None else self.sources.module(located[0])
        if located is None or module is None:
            return Signature(parameters=[], refusal=f"no symbol {symbol}")
        name, top, member = located
        if member is None:
            functions = module.functions(top)
            if not functions:
                what = "a class; name one of its methods" if module.classes(top) else "not a function"
                return Signature(parameters=[], refusal=f"{symbol} is {what}")
            return self.function(name, functions[-1], bound=False)
        if "." in member:
            return Signature(parameters=[], refusal=f"{symbol} is inside a class of a class")
        found = self.member(name, top, member)
        if found is None:
            return Signature(parameters=[], refusal=f"{symbol} is not a method written with `def`")
        owner_module, node = found
        decorators = {last_name(decorator) for decorator in node.decorator_list}
        if decorators & {"property", "cached_property", "setter"}:
            return Signature(parameters=[], refusal=f"{symbol} is a property, not a function")
        signature = self.function(owner_module, node, bound="staticmethod" not in decorators)
        if not decorators & {"staticmethod", "classmethod"} and not signature["refusal"]:
            owner = self.made(name, top, _DEPTH)
            if owner is None:
                refusal = f"{symbol} is a method, and {top} cannot be made from annotations of its own"
                return Signature(parameters=[], refusal=refusal)
            signature["owner"] = owner
        return signature

    def function(self, module: str, node: FunctionNode, bound: bool) -> Signature:
        if any(self.is_kernel(module, decorator) for decorator in node.decorator_list):
            refusal = f"{node.name} is a raw Triton kernel: its grid and buffers are not in its signature"
            return Signature(parameters=[], refusal=refusal)
        if isinstance(node, ast.AsyncFunctionDef):
            return Signature(parameters=[], refusal=f"{node.name} is a coroutine")
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
        pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        if arguments.posonlyargs:
            return Signature(parameters=[], refusal=f"{node.name} takes positional-only parameters")
        shapes = {**_unpacked(node), **self.comments(module, [argument for argument, _ in pairs])}
        found = []
        for argument, default in pairs[1 if bound else 0 :]:
            parameter = self.parameter(module, argument.arg, argument.annotation, default, _DEPTH)
            if argument.arg in shapes:
                parameter["dims"] = shapes[argument.arg]
            found.append(parameter)
        return Signature(parameters=found, refusal="")

    def is_kernel(self, module: str, decorator: ast.expr) -> bool:
        """Whether a decorator is Triton's `jit`, not another library's."""
        source = self.sources.module(module)
        if last_name(decorator) != "jit" or source is None:
            return False
        root = root_name(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
        return root == "triton" or any("triton" in found.module for found in source.imports_of(root))

    def comments(self, module: str, arguments: list[ast.arg]) -> dict[str, list[str]]:
        """Shapes in comments behind a parameter, or on a line of their own before it."""
        source = self.sources.module(module)
        if source is None:
            return {}
        lines = source_lines(source.data)
        found = {}
        for argument in arguments:
            here = lines[argument.lineno - 1]
            before = lines[argument.lineno - 2].strip() if argument.lineno > 1 else ""
            for text in (here[argument.col_offset :], before if before.startswith("#") else ""):
                if match := _SHAPE.search(text):
                    found[argument.arg] = [part.strip() for part in match[1].split(",") if part.strip()]
                    break
        return found

    def parameter(
        self, module: str, name: str, annotation: ast.expr | None, default: ast.expr | None, depth: int
    ) -> Parameter:
        if annotation is not None:
            kinds = self.kinds(module, annotation, depth)
            written = ast.unparse(annotation).strip("'\"")
        else:
            kinds, written = _of_default(default) or ([] if default is not None else _of_name(name)), ""
        return Parameter(name=name, kinds=kinds, annotation=written, default=default is not None)

    def kinds(self, module: str, node: ast.expr, depth: int) -> list[Kind]:
        """What an annotation allows, as far as it is known."""
        if isinstance(node, ast.Constant):
            if node.value is None:
                return [{"kind": "none"}]
            if isinstance(node.value, str):
                try:
                    return self.kinds(module, ast.parse(node.value, mode="eval").body, depth)
                except SyntaxError:
                    return []
            return []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return _unique([*self.kinds(module, node.left, depth), *self.kinds(module, node.right, depth)])
        if isinstance(node, ast.Subscript):
            return self.subscript(module, node, depth)
        name = last_name(node)
        if name in _PLAIN:
            return [{"kind": _PLAIN[name]}]
        if name in _LISTS or name in _DICTS or name == "tuple":
            return []  # of what is not said
        return self.named(module, node, depth) if isinstance(node, ast.Name) and depth else []

    def subscript(self, module: str, node: ast.Subscript, depth: int) -> list[Kind]:
        name = last_name(node.value)
        items = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Optional":
            return _unique([*self.kinds(module, items[0], depth), {"kind": "none"}])
        if name == "Union":
            return _unique([kind for item in items for kind in self.kinds(module, item, depth)])
        if name in ("Annotated", "Final", "ClassVar"):
            return self.kinds(module, items[0], depth)
        if name == "Literal":
            values = [item.value for item in items if isinstance(item, ast.Constant)]
            return [{"kind": "literal", "values": values}] if values else []
        if name in ("NDArray", "ndarray"):
            return [{"kind": "ndarray"}]
        of = [self.kinds(module, item, depth) for item in items if not _is_ellipsis(item)]
        if not of or not all(of):
            return []
        if name in _LISTS:
            return [{"kind": "list", "of": of}]
        if name in _DICTS and len(of) == 2 and of[0][0]["kind"] in ("int", "str"):
            return [{"kind": "dict", "of": of}]
        if name in ("tuple", "Tuple"):
            return [{"kind": "tuple", "of": of, "any": len(items) > len(of)}]
        return []

    def named(self, module: str, node: ast.Name, depth: int) -> list[Kind]:
        """A class or an alias of the tree."""
        located = self.sources.locate(f"{module}:{node.id}")
        source = None if located is None else self.sources.module(located[0])
        if located is None or source is None or located[2] is not None:
            return []
        home, top, _ = located
        if source.classes(top):
            made = self.made(home, top, depth - 1)
            return [] if made is None else [made]
        for index in source.binding(top):
            statement = source.statements[index]
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                return self.kinds(home, statement.value, depth - 1)
        return []

    def made(self, module: str, name: str, depth: int) -> Kind | None:
        """How an object of a class is made: of the fields of a dataclass or NamedTuple, or what `__init__` takes."""
        fields = self.fields(module, name, depth)
        if fields is None:
            return None
        needed = [field for field in fields if not field["default"]]
        if any(not field["kinds"] for field in needed):
            return None
        return {"kind": "made", "symbol": f"{module}:{name}", "fields": needed}

    def fields(self, module: str, name: str, depth: int) -> list[Parameter] | None:
        source = self.sources.module(module)
        classes = source.classes(name) if source is not None else []
        if not classes or depth < 0:
            return None
        node = classes[-1]
        decorators = {last_name(decorator) for decorator in node.decorator_list}
        init = self.member(module, name, "__init__")
        if init is not None and "dataclass" not in decorators:
            signature = self.function(init[0], init[1], bound=True)
            return None if signature["refusal"] else signature["parameters"]
        bases = [base for base in node.bases if last_name(base) not in ("object", "Generic", "ABC", "Protocol")]
        if "dataclass" not in decorators and [last_name(base) for base in bases] != ["NamedTuple"]:
            if bases or any(isinstance(statement, ast.AnnAssign) for statement in node.body):
                return None
            return []  # a plain class that takes nothing
        found: dict[str, Parameter] = {}
        for base in bases:
            located = self.sources.locate(f"{module}:{base.id}") if isinstance(base, ast.Name) else None
            for field in (self.fields(located[0], located[1], depth) or []) if located is not None else []:
                found[field["name"]] = field
        shapes = self.field_comments(module, node)
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if "ClassVar" in ast.unparse(statement.annotation) or _is_no_argument(statement.value):
                continue
            field_name = statement.target.id
            default = None if _has_no_default(statement.value) else statement.value
            found[field_name] = self.parameter(module, field_name, statement.annotation, default, depth)
            if field_name in shapes:
                found[field_name]["dims"] = shapes[field_name]
        return list(found.values())

    def field_comments(self, module: str, node: ast.ClassDef) -> dict[str, list[str]]:
        arguments = []
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                argument = ast.arg(statement.target.id, statement.annotation)
                arguments.append(ast.copy_location(argument, statement))
        return self.comments(module, arguments)

    def member(self, module: str, name: str, member: str, depth: int = 8) -> tuple[str, FunctionNode] | None:
        """A method, of the class or of a base inside the tree, and the module that it is written in."""
        source = self.sources.module(module)
        classes = source.classes(name) if source is not None else []
        if not classes or not depth:
            return None
        for statement in reversed(classes[-1].body):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == member:
                return module, statement
        for base in classes[-1].bases:
            located = self.sources.locate(f"{module}:{base.id}") if isinstance(base, ast.Name) else None
            found = self.member(located[0], located[1], member, depth - 1) if located is not None else None
            if found is not None:
                return found
        return None


def _unpacked(node: FunctionNode) -> dict[str, list[str]]:
    """Axes that the body names: `rows, columns = name.shape`."""
    found = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Attribute) and inner.value.attr == "shape":
            target, owner = inner.targets[0], inner.value.value
            if isinstance(target, ast.Tuple) and isinstance(owner, ast.Name):
                found[owner.id] = [last_name(item) for item in target.elts]
    return found


def _of_default(default: ast.expr | None) -> list[Kind]:
    value = default.value if isinstance(default, ast.Constant) else None
    kind = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(value))
    return [] if kind is None else [{"kind": kind}]


def _of_name(name: str) -> list[Kind]:
    """What a parameter without an annotation is by the usage of the field."""
    return next(([{"kind": kind}] for pattern, kind in _USUAL if re.fullmatch(pattern, name)), [])


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _has_no_default(value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call) or last_name(value.func) != "field":
        return value is None
    return not any(keyword.arg in ("default", "default_factory") for keyword in value.keywords)


def _is_no_argument(value: ast.expr | None) -> bool:
    """Whether a field is not taken by the constructor: `field(init=False)`."""
    return isinstance(value, ast.Call) and any(
        keyword.arg == "init" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in value.keywords
    )


def _unique(kinds: list[Kind]) -> list[Kind]:
    return [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
