"""Outcomes that differ in what is easily overlooked are different, and those that only look so are not.

Each pair of bodies is a target of its own; all go through one run.
"""

from __future__ import annotations

import pytest

from difftest import api
from difftest.result import TargetResult

CASES = """
import numpy as np
import torch
from difftest.target import Case, Target


def cases():
    for number in range(1, 7):
        def build(number=number):
            return {"x": torch.arange(number, dtype=torch.float32) - 2, "n": number, "items": list(range(number)),
                    "table": {"a": 1, "b": 2}, "array": np.arange(number)}
        yield Case(f"{number} values", build)


TARGETS = tuple(Target("pair." + name, (f"pack.{name}:f",), cases) for name in NAMES)
"""

HEADER = """
import collections, dataclasses, decimal, enum, functools, os, random, sys, warnings
import numpy as np
import torch
"""


# name -> (code of the module, body in base, body in head, kind of the mismatch, or the verdict)
PAIRS: dict[str, tuple[str, str, str, str]] = {
    # functions that are returned
    "closed_over": ("", "k = n\ndef q(): return k\nreturn q", "k = n + 1\ndef q(): return k\nreturn q", "value"),
    "default": ("", "def q(k=n): return k\nreturn q", "def q(k=n + 1): return k\nreturn q", "value"),
    "partial": ("", "return functools.partial(int, '1')", "return functools.partial(int, '2')", "value"),
    "method_of": (
        "class K:\n    def __init__(self, v): self.v = v\n    def m(self): return self.v\n",
        "return K(n).m",
        "return K(n + 1).m",
        "value",
    ),
    "method_of_builtin": ("", "return [n].index", "return [n + 1].index", "value"),
    "class_value": ("class K: v = 1\n", "return K", "K.v = 2\nreturn K", "value"),
    "other_code": ("", "return lambda v: v * n", "return lambda v: n * v + 0", "unmeasured"),
    "helper_of_function": ("V = 1\ndef q(): return V\n", "return q", "global V\nV = 2\nreturn q", "value"),
    "same_code": ("", "return lambda v: v * n", "m = n  # moved\nreturn lambda v: (v * n)", "identical"),
    "documented": ("", "def q(): return 1\nreturn q", "def q():\n    'one'\n    return 1\nreturn q", "identical"),
    "library_function": ("", "return torch.add", "return torch.sub", "type"),
    # what objects hold
    "numpy_generator": ("", "return np.random.default_rng(3)", "return np.random.default_rng(4)", "rng"),
    "random_generator": ("", "return random.Random(1)", "return random.Random(2)", "rng"),
    "deque_length": ("", "return collections.deque([1], 3)", "return collections.deque([1], 2)", "value"),
    "storage": ("", "return (x + n).untyped_storage()", "return (x - n).untyped_storage()", "value"),
    "same_storage": ("", "return (x + n).untyped_storage()", "return (n + x).untyped_storage()", "identical"),
    "typed_storage": (
        "warnings.simplefilter('ignore')\n",
        "return (x + n).storage()",
        "return (x - n).storage()",
        "value",
    ),
    "bytes_file": ("import io\n", "return io.BytesIO(bytes([n]))", "return io.BytesIO(bytes([n + 1]))", "value"),
    "same_file": ("import io\n", "return io.BytesIO(bytes([n]))", "m = n\nreturn io.BytesIO(bytes([m]))", "identical"),
    "ctypes_number": ("import ctypes\n", "return ctypes.c_int(n)", "return ctypes.c_int(n + 1)", "value"),
    "date_subclass": (
        "import datetime\nclass D(datetime.date): pass\n",
        "return D(2020, 1, n)",
        "return D(2020, 2, n)",
        "value",
    ),
    "array_module_subclass": (
        "import array\nclass A(array.array): pass\n",
        "return A('i', [n])",
        "return A('i', [n + 1])",
        "value",
    ),
    "complex_subclass": ("class C(complex): pass\n", "return C(n)", "return C(n + 1)", "value"),
    "enum_of_lists": (
        "",
        "return enum.Enum('E', {'A': [n]}).A",
        "return enum.Enum('E', {'A': [n + 1]}).A",
        "value",
    ),
    "namespace": (
        "import types\n",
        "return types.SimpleNamespace(v=n)",
        "return types.SimpleNamespace(v=n + 1)",
        "value",
    ),
    "same_namespace": (
        "import types\n",
        "return types.SimpleNamespace(v=n)",
        "m = n\nreturn types.SimpleNamespace(v=m)",
        "identical",
    ),
    "decimal": ("", "return decimal.Decimal(n)", "return decimal.Decimal(n + 1)", "value"),
    "ordered": (
        "O = collections.OrderedDict\n",
        "return O(a=1, b=2)",
        "return O(b=2, a=1)",
        "value",
    ),
    "factory": ("", "return collections.defaultdict(list)", "return collections.defaultdict(int)", "type"),
    "attribute_of_list": (
        "class M(list): pass\n",
        "q = M([1]); q.extra = n; return q",
        "q = M([1]); q.extra = n + 1; return q",
        "value",
    ),
    "private_slot": (
        "class K:\n    __slots__ = ('__a',)\n    def __init__(self, a): self.__a = a\n",
        "return K(n)",
        "return K(n + 1)",
        "value",
    ),
    "exception_value": ("", "return ValueError('a')", "return ValueError('b')", "value"),
    "exception_note": ("", "return ValueError('a')", "e = ValueError('a'); e.add_note('b'); return e", "structure"),
    "dict_values": ("", "return {'a': n}.values()", "return {'a': n + 1}.values()", "value"),
    "key": ("class K(str): pass\n", "return {K(n): 1}", "return {K(n + 1): 1}", "structure"),
    "iterator": ("", "return iter(items)", "return iter(items[::-1])", "value"),
    "masked": ("", "return np.ma.array([1, 2], mask=[0, 1])", "return np.ma.array([1, 2], mask=[1, 0])", "value"),
    "array_subclass": (
        "class M(np.ndarray): pass\n",
        "return (array * 2).view(M)",
        "return (array * 3 + 1).view(M)",
        "value",
    ),
    "read_only": ("", "return array * 2", "q = array * 2; q.flags.writeable = False; return q", "structure"),
    "unit_of_time": ("", "return np.datetime64(n, 'D')", "return np.datetime64(n, 's')", "type"),
    "module_name": ("", "return __name__", "return __name__ + ''", "identical"),
    "class_in_text": ("class K: pass\n", "return f'{K}'", "return f'{K}' + ''", "identical"),
    # tensors that are more than their elements
    "gradient_wanted": ("", "return x * 2", "return (x * 2).requires_grad_()", "structure"),
    "gradient": (
        "",
        "x.requires_grad_(); x.sum().backward(); return n",
        "x.requires_grad_(); (2 * x).sum().backward(); return n",
        "value",
    ),
    "parameter": ("", "return x * 2", "return torch.nn.Parameter(x * 2, requires_grad=False)", "type"),
    "attribute_of_tensor": ("", "return x * 2", "q = x * 2; q.tag = n; return q", "structure"),
    "inference": (
        "",
        "with torch.no_grad(): return x * 1",
        "with torch.inference_mode(): return x * 1",
        "structure",
    ),
    "conjugate": (
        "",
        "return torch.complex(x, x).conj().resolve_conj()",
        "return torch.complex(x, x).conj()",
        "structure",
    ),
    "scale": (
        "",
        "return torch.quantize_per_tensor(x, 0.5, 0, torch.qint8)",
        "return torch.quantize_per_tensor(x * 2, 1.0, 0, torch.qint8)",
        "value",
    ),
    "nested": (
        "",
        "return torch.nested.nested_tensor([x, x])",
        "return torch.nested.nested_tensor([x, x + 1])",
        "value",
    ),
    "jagged": (
        "J = torch.jagged\n",
        "return torch.nested.nested_tensor([x, x], layout=J)",
        "return torch.nested.nested_tensor([x, x + 1], layout=J)",
        "value",
    ),
    "sparse": (
        "",
        "return torch.tensor([[0, n]]).to_sparse()",
        "return torch.tensor([[0, n + 1]]).to_sparse()",
        "value",
    ),
    # which objects are one and the same
    "input_itself": ("", "return list(items)", "return items", "alias"),
    "held_input": ("", "return [list(items)]", "return [items]", "alias"),
    "one_list_twice": ("", "q = [n]; return [q, list(q)]", "q = [n]; return [q, q]", "alias"),
    "one_dict_twice": ("", "return [{'a': n}, {'a': n}]", "q = {'a': n}; return [q, q]", "alias"),
    "holds_itself": ("", "q = []; q.append([]); q[0].append(q); return q", "q = []; q.append(q); return q", "alias"),
    "dict_in_other_order": (
        "",
        "q = [n]; return {'a': q, 'b': q}",
        "q = [n]; return {'b': q, 'a': q}",
        "identical",
    ),
    "immutables": (
        "",
        "return ((1, n), (1, n), 'ab' * n, ())",
        "q = (1, n); return (q, q, 'ab' * n, tuple([]))",
        "identical",
    ),
    "nested_deep": (
        "",
        "q = []\nfor _ in range(300): q = [q]\nreturn q",
        "q = [1]\nfor _ in range(300): q = [q]\nreturn q",
        "unmeasured",
    ),
    # settings of the process
    "variable": ("", "return n", "os.environ['ZZ'] = '1'; return n", "mutation"),
    "warning_filter": ("", "return n", "warnings.simplefilter('error'); return n", "mutation"),
    "search_path": ("", "return n", "sys.path.append('/x'); return n", "mutation"),
    "numpy_precision_shown": ("", "return n", "np.set_printoptions(precision=2); return n", "mutation"),
    "cannot_run_in_head": (
        "",
        "return n",
        "if n < 3: raise ImportError('n is too small')\nreturn n",
        "unmeasured",
    ),
    "cannot_run_in_either": (
        "",
        "if n < 3: raise ImportError('n is too small')\nreturn n",
        "m = n\nif m < 3: raise ImportError('n is too small')\nreturn n",
        "identical",
    ),
    "precision_shown": ("", "return n", "torch.set_printoptions(precision=2); return n", "mutation"),
    "decimal_context": ("", "return n", "decimal.getcontext().prec = 5; return n", "mutation"),
    "descriptor": ("", "return n", "os.close(1)\nreturn n", "mutation"),
    "output_after_it": ("", "print('x', flush=True); return n", "os.write(1, b'x'); return n", "identical"),
    # what depends on the calls before
    "kept_maximum": ("H = [0]\n", "return max(items)", "H[0] = max(H[0], max(items)); return H[0]", "value"),
    "one_buffer": ("B = torch.zeros(64)\n", "return x * 2", "B[:n].copy_(x * 2)\nreturn B[:n]", "alias"),
    "cached_by_size": (
        "@functools.lru_cache\ndef q(v): return torch.zeros(v)\n",
        "return torch.zeros(n)",
        "return q(n)",
        "alias",
    ),
    "one_global_list": ("G = [1, 2]\n", "return list(G)", "return G", "alias"),
    "cached_in_both": (
        "@functools.lru_cache\ndef q(v): return torch.zeros(v)\n",
        "return q(n)",
        "m = n\nreturn q(m)",
        "identical",
    ),
    "cached_number": ("@functools.lru_cache\ndef q(v): return v * 2\n", "return n * 2", "return q(n)", "identical"),
    # bytes that nobody wrote
    "undefined_is_zero": (
        "I = torch.int32\n",
        "return torch.zeros(4, dtype=torch.bool)",
        "q = torch.empty(4, dtype=I); q[:3] = 1; return q == 0",
        "undefined",
    ),
    "undefined_above": (
        "",
        "return torch.zeros(4) > 1e30",
        "q = torch.empty(4); q[:3] = 0; return q > 1e30",
        "undefined",
    ),
    "undefined_largest": (
        "",
        "return torch.zeros(4).argmax()",
        "q = torch.empty(4); q[0] = 1e38; q[1:3] = 0; return q.argmax()",
        "undefined",
    ),
    "written_beside": (
        "",
        "q = torch.empty(3, dtype=torch.complex64); q.real[:] = n; return q",
        "q = torch.empty(3, dtype=torch.complex64); q.real[:] = n + 1; return q",
        "value",
    ),
    "other_part_written": (
        "",
        "q = torch.empty(3, dtype=torch.complex64); q.real[:] = n; return q",
        "q = torch.empty(3, dtype=torch.complex64); q.imag[:] = n; return q",
        "undefined",
    ),
    "undefined_gradient": (
        "",
        "q = (x * 2).requires_grad_(); q.grad = torch.empty_like(q); return q",
        "q = (x * 3 + 1).requires_grad_(); q.grad = torch.empty_like(q); return q",
        "value",
    ),
    "attribute_by_chance": (
        "import time",
        "q = x * 2; q.time = time.perf_counter(); return q",
        "q = x * 3 + 1; q.time = time.perf_counter(); return q",
        "unmeasured",
    ),
    "undefined_message": (
        "",
        "raise ValueError(f'{torch.empty(1).item()}')",
        "raise KeyError(f'{torch.empty(1).item()}')",
        "exception",
    ),
    "undefined_seed": (
        "",
        "torch.manual_seed(torch.empty(1, dtype=torch.int64).item()); return n",
        "torch.manual_seed(torch.empty(1, dtype=torch.int64).item()); np.random.rand(); return n",
        "rng",
    ),
    "undefined_alike": (
        "",
        "q = torch.empty(4, dtype=torch.int32); q[0] = n; return q, f'{q[1]} of {n}', {q[2].item(): n}",
        "q = torch.empty(4, dtype=torch.int32); q[0] = n * 1; return q, f'{q[1]} of {n}', {q[2].item(): n}",
        "identical",
    ),
    # messages
    "hexadecimal_number": (
        "",
        "raise ValueError(f'bad token {hex(0x1000000 + n)}')",
        "raise ValueError(f'bad token {hex(0x1000000 + n + 1)}')",
        "exception",
    ),
    "some_raise_a_hexadecimal_number": (
        "",
        "if n < 5: raise ValueError(hex(0xdeadbeef))\nreturn n",
        "if n < 5: raise ValueError(hex(0xdeadbee0))\nreturn n",
        "exception",
    ),
    "address_of_an_object": (
        "class K: pass\n",
        "q = K()\nif n < 2: raise ValueError(f'{q} {f} {[x.relu]} {id(q):#x} {x.data_ptr():#X}')\nreturn n",
        "q = [K(), K()][1]\nif n < 2: raise ValueError(f'{q} {f} {[x.relu]} {id(q):#x} {x.data_ptr():#X}')\nreturn n",
        "identical",
    ),
    "end_of_a_long_message": (
        "",
        "if n < 5: raise ValueError('a' * 3000 + str(n))\nreturn n",
        "if n < 5: raise ValueError('a' * 3000 + str(n + 1))\nreturn n",
        "exception",
    ),
    # bytes that hold no value
    "padding_of_a_record": (
        "D = np.dtype([('a', 'i1'), ('b', 'i8')], align=True)\n",
        "q = np.zeros(n, D); q['b'] = n; return q, q[0]",
        "q = np.empty(n, D); q['a'] = 0; q['b'] = n; return q, q[0]",
        "identical",
    ),
    "field_of_a_record": (
        "D = np.dtype([('a', 'i1'), ('b', 'i8')], align=True)\n",
        "q = np.zeros(n, D); q['b'] = n; return q",
        "q = np.empty(n, D); q['b'] = n; return q",
        "undefined",
    ),
    "padding_of_long_doubles": (
        "",
        "q = np.zeros(n, np.longdouble); q[:] = n; return q, q[0], q + 1j",
        "q = np.empty(n, np.longdouble); q[:] = n; return q, q[0], q + 1j",
        "identical",
    ),
    "long_double": ("", "return np.longdouble(n) / 3", "return np.longdouble(n / 3)", "value"),
    "padding_of_a_structure": (
        "import ctypes\nclass S(ctypes.Structure): _fields_ = [('a', ctypes.c_int8), ('b', ctypes.c_int64)]\n",
        "return S(1, n)",
        "q = S.from_buffer(np.empty(16, np.uint8)); q.a, q.b = 1, n; return q",
        "identical",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TargetResult]:
    folder = tmp_path_factory.mktemp("pairs")
    for arm in ("base", "head"):
        (folder / arm / "pack").mkdir(parents=True)
        (folder / arm / "pack/__init__.py").write_text("")
    for name, (module, *bodies, _) in PAIRS.items():
        for arm, body in zip(("base", "head"), bodies, strict=True):
            text = "".join(f"    {line}\n" for line in body.split("\n"))
            signature = "def f(x, n, items, table, array):\n"
            (folder / arm / f"pack/{name}.py").write_text(f"{HEADER}{module}\n\n{signature}{text}")
    cases = folder / "pair_cases.py"
    cases.write_text(f"NAMES = {sorted(PAIRS)!r}\n{CASES}")
    result = api.run(
        api.RunOptions(
            base=str(folder / "base"),
            heads=(str(folder / "head"),),
            targets=("pair.*",),
            cases_from=(cases,),
            jobs=1,
        )
    )
    return {target.name.removeprefix("pair."): target for target in result.targets}


@pytest.mark.parametrize("name", PAIRS)
def test_it_is_what_it_looks_like_on_a_second_look(results: dict[str, TargetResult], name: str) -> None:
    target, expected = results[name], PAIRS[name][3]
    if expected in ("identical", "unmeasured"):
        assert target.verdict == expected, target
    else:
        assert target.verdict == "different", target
        assert expected in target.kinds
