"""Registries count however they are filled: a change of what is registered is a change of what reads them."""

# ruff: noqa: E501 (a row of a table stays on its line)
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from small_trees import arm_of, closure_of

ONE_FILE = (
    "import functools, contextlib, itertools\n"
    "T = []\n"
    "D = {}\n"
    "K = True\n"
    "def register(g):\n"
    "    T.append(g)\n"
    "    return True\n"
    "def put(t, g):\n"
    "    t.append(g)\n"
    "    return t\n"
    "def g(x): return @@\n"
    "def h(x): return x\n"
)
OTHER_FILE = (
    "import functools, contextlib, itertools\n"
    "from .r import T, D, register, put, Base, M, Obj, Field, deco, REG\n"
    "from . import r\n"
    "from .mid import go\n"
    "K = True\n"
    "def g(x): return @@\n"
    "def h(x): return x\n"
)
REGISTRIES = """\
T = []
D = {}
REG = {}
def register(g):
    T.append(g)
    return True
def put(t, g):
    t.append(g)
    return t
class M(type):
    S = []
    def __new__(mcs, n, b, ns):
        c = super().__new__(mcs, n, b, ns); T.append(c); return c
class MB(metaclass=M): pass
T.clear()
class Base:
    registry = {}
    def __init_subclass__(cls, **k):
        Base.registry[cls.__name__] = cls
        REG[cls.__name__] = cls
class Obj:
    all = []
    def __init__(self, g): self.all.append(g)
class Field:
    all = []
    def __set_name__(self, owner, name): Field.all.append(owner); T.append(owner)
def deco(name):
    def w(c):
        T.append(c); return c
    return w
"""

# What fills a table of its own file with `g`, and how that is read.
FILLED = {
    "comp": ("_ = [T.append(q) for q in (g, h)]", "T[0](x)"),
    "compstmt": ("[T.append(q) for q in (g, h)]", "T[0](x)"),
    "comp_reg": ("_ = [register(q) for q in (g, h)]", "T[0](x)"),
    "genexp": ("_ = list(T.append(q) for q in (g, h))", "T[0](x)"),
    "anygen": ("any(T.append(q) for q in (g, h))", "T[0](x)"),
    "dictcomp": ("_ = {q: T.append(q) for q in (g, h)}", "T[0](x)"),
    "assert": ("assert register(g)", "T[0](x)"),
    "assert2": ("assert T.append(g) is None", "T[0](x)"),
    "assertmsg": ("try:\n    assert False, register(g)\nexcept AssertionError: pass", "T[0](x)"),
    "lambda": ("(lambda: T.append(g))()", "T[0](x)"),
    "lambda_arg": ("(lambda t: t.append(g))(T)", "T[0](x)"),
    "lambda_asg": ("_ = (lambda: T.append(g))()", "T[0](x)"),
    "lambda_name": ("reg = lambda q: T.append(q)\nreg(g)", "T[0](x)"),
    "map": ("list(map(T.append, [g]))", "T[0](x)"),
    "mapreg": ("list(map(register, [g]))", "T[0](x)"),
    "map_lambda": ("_ = list(map(lambda q: T.append(q), [g]))", "T[0](x)"),
    "cond": ("T.append(g) if K else None", "T[0](x)"),
    "cond_asg": ("_ = T.append(g) if K else None", "T[0](x)"),
    "and": ("K and T.append(g)", "T[0](x)"),
    "walrus": ("if (q := T.append(g)) is None: pass", "T[0](x)"),
    "walrus2": ("(q := T).append(g)", "T[0](x)"),
    "ifcall": ("if register(g): pass", "T[0](x)"),
    "while": ("while not T: register(g)", "T[0](x)"),
    "whiletest": ("while not register(g): pass", "T[0](x)"),
    "with": ("with contextlib.suppress(Exception):\n    T.append(g)", "T[0](x)"),
    "withitem": ("with contextlib.nullcontext(T.append(g)): pass", "T[0](x)"),
    "withas": ("with contextlib.nullcontext(T) as t:\n    t.append(g)", "T[0](x)"),
    "for": ("for q in (g, h): T.append(q)", "T[0](x)"),
    "foralias": ("for t in (T, []): t.append(g)", "T[0](x)"),
    "compalias": ("[t.append(g) for t in (T, [])]", "T[0](x)"),
    "foriter": ("for _ in [T.append(g)]: pass", "T[0](x)"),
    "try": ("try: T.append(g)\nfinally: pass", "T[0](x)"),
    "tryelse": ("try: pass\nexcept ValueError: pass\nelse: register(g)", "T[0](x)"),
    "aug": ("T += [g]", "T[0](x)"),
    "augcall": ("n = 0\nn += register(g)", "T[0](x)"),
    "sub": ("D['a'] = g", "D['a'](x)"),
    "setdefault": ("D.setdefault('a', g)", "D['a'](x)"),
    "setdefault_asg": ("v = D.setdefault('a', g)", "D['a'](x)"),
    "setdefault_ch": ("D.setdefault('a', []).append(g)", "D['a'][0](x)"),
    "alias": ("t = T\nt.append(g)", "T[0](x)"),
    "alias_sub": ("D['q'] = []\nt = D['q']\nt.append(g)", "D['q'][0](x)"),
    "alias_def": ("t = D.setdefault('q', [])\nt.append(g)", "D['q'][0](x)"),
    "alias_meth": ("add = T.append\nadd(g)", "T[0](x)"),
    "partial": ("functools.partial(register, g)()", "T[0](x)"),
    "partial2": ("reg = functools.partial(register)\nreg(g)", "T[0](x)"),
    "put": ("put(T, g)", "T[0](x)"),
    "put_asg": ("_ = put(T, g)", "T[0](x)"),
    "put_assert": ("assert put(T, g)", "T[0](x)"),
    "put_kw": ("_ = put(t=T, g=g)", "T[0](x)"),
    "nested_call": ("print(end='', sep=str(register(g)))", "T[0](x)"),
    "ret_call": ("def mk():\n    return register\nmk()(g)", "T[0](x)"),
    "ret_method": ("put(T, h).insert(0, g)", "T[0](x)"),
    "default": ("def z(q=T.append(g)): pass", "T[0](x)"),
    "defaultreg": ("def z(q=register(g)): pass", "T[0](x)"),
    "deco_lambda": ("deco = lambda q: (T.append(q), q)[1]\n@deco\ndef z(x): return g(x)", "T[0](x)"),
    "deco_ifexp": ("@(register if K else register)\ndef z(x): return g(x)", "T[0](x)"),
    "deco_args": ("def deco(n):\n    def w(q):\n        T.append(q); return q\n    return w\n@deco('a')\ndef z(x): return g(x)", "T[0](x)"),
    "classbody": ("class Z:\n    T.append(g)", "T[0](x)"),
    "classbody2": ("class Z:\n    a = register(g)", "T[0](x)"),
    "classbody3": ("class Z:\n    for q in (g, h): T.append(q)", "T[0](x)"),
    "classdeco": ("@register\nclass Z:\n    def __call__(self, x): return g(x)", "5 if T == [True] else T[0]()(x)"),
    "del": ("T.extend([h, g])\ndel T[0]", "T[0](x)"),
    "slice": ("T[:] = [g]", "T[0](x)"),
    "starred": ("a, *T[0:] = 1, g", "T[0](x)"),
    "nested_tuple": ("(a, (D['a'], c)) = 1, (g, 3)", "D['a'](x)"),
    "fortarget": ("for D['a'] in [g]: pass", "D['a'](x)"),
    "withtarget": ("with contextlib.nullcontext(g) as D['a']: pass", "D['a'](x)"),
    "match": ("match register(g):\n    case _: pass", "T[0](x)"),
    "matchcase": ("match 1:\n    case 1: T.append(g)", "T[0](x)"),
    "fstr": ("f'{register(g)}'", "T[0](x)"),
    "dunder": ("T.__iadd__([g])", "T[0](x)"),
    "setattr": ("setattr(h, 'k', g)", "h.k(x)"),
    "setattr_asg": ("_ = setattr(h, 'k', g)", "h.k(x)"),
    "setattr_comp": ("[setattr(h, n, g) for n in ('k',)]", "h.k(x)"),
    "attr_for": ("for n in 'k': h.k = g", "h.k(x)"),
    "listmeth": ("list.append(T, g)", "T[0](x)"),
    "operator": ("import operator\noperator.iadd(T, [g])", "T[0](x)"),
    "heapq": ("import heapq\n_ = heapq.heappush(T, g)", "T[0](x)"),
    "dictattr": ("h.__dict__['k'] = g", "h.k(x)"),
    "varsattr": ("vars(h)['k'] = g", "h.k(x)"),
    "obj_call": ("class R:\n    def __call__(self, q): T.append(q); return q\nr = R()\nr(g)", "T[0](x)"),
    "obj_call2": ("class R:\n    def __init__(self): self.t = []\n    def __call__(self, q): self.t.append(q); return q\nr = R()\n_ = r(g)", "r.t[0](x)"),
    "obj_deco": ("class R:\n    def __init__(self): self.t = []\n    def __call__(self, q): self.t.append(q); return q\nr = R()\n@r\ndef z(x): return g(x)", "r.t[0](x)"),
    "obj_deco_call": ("class R:\n    def __init__(self): self.t = []\n    def __call__(self, n):\n        def w(q): self.t.append(q); return q\n        return w\nr = R()\n@r('a')\ndef z(x): return g(x)", "r.t[0](x)"),
    "obj_meth_asg": ("class R:\n    def __init__(self): self.t = []\n    def reg(self, q): self.t.append(q); return q\nr = R()\n_ = r.reg(g)", "r.t[0](x)"),
    "ctor": ("class R:\n    def __init__(self, q): T.append(q)\nR(g)", "T[0](x)"),
    "ctor_asg": ("class R:\n    def __init__(self, q): T.append(q)\na = R(g)", "T[0](x)"),
    "ctor_self": ("class R:\n    all = []\n    def __init__(self, q): self.all.append(q)\na = R(g)", "R.all[0](x)"),
    "ctor_type": ("class R:\n    all = []\n    def __init__(self, q): type(self).all.append(q)\na = R(g)", "R.all[0](x)"),
    "ctor_cls": ("class R:\n    all = []\n    def __new__(cls, q):\n        cls.all.append(q); return object.__new__(cls)\na = R(g)", "R.all[0](x)"),
    "ctor_post": ("import dataclasses\n@dataclasses.dataclass\nclass R:\n    q: object\n    def __post_init__(self): T.append(self.q)\na = R(g)", "T[0](x)"),
    "ctor_helper": ("class R:\n    def __init__(self, q): self.go(q)\n    def go(self, q): T.append(q)\na = R(g)", "T[0](x)"),
    "ctor_inh": ("class R:\n    def __init__(self, q): T.append(q)\nclass S(R): pass\na = S(g)", "T[0](x)"),
    "enter": ("class R:\n    def __enter__(self): T.append(g)\n    def __exit__(self, *a): pass\nwith R(): pass", "T[0](x)"),
    "clsmeth": ("class R:\n    all = []\n    @classmethod\n    def reg(cls, q): cls.all.append(q); return q\n_ = R.reg(g)", "R.all[0](x)"),
    "statmeth": ("class R:\n    @staticmethod\n    def reg(q): T.append(q); return q\n_ = R.reg(g)", "T[0](x)"),
    "statmeth_deco": ("class R:\n    @staticmethod\n    def reg(q): T.append(q); return q\n@R.reg\ndef z(x): return g(x)", "T[0](x)"),
    "helper_comp": ("def fill(): return [T.append(q) for q in (g, h)]\nfill()", "T[0](x)"),
    "helper_alias": ("def fill():\n    t = T\n    t.append(g)\nfill()", "T[0](x)"),
    "helper_lambda": ("def fill(): (lambda: T.append(g))()\nfill()", "T[0](x)"),
    "helper_for": ("def fill():\n    for t in (T,): t.append(g)\nfill()", "T[0](x)"),
    "helper_ret": ("def tab(): return T\ntab().append(g)", "T[0](x)"),
    "helper_put": ("def fill(): put(T, g)\nfill()", "T[0](x)"),
    "helper_kw": ("def fill(q, t=T): t.append(q)\nfill(g)", "T[0](x)"),
    "helper_setdef": ("def fill(q): D.setdefault('a', []).append(q)\nfill(g)", "D['a'][0](x)"),
    "helper_odd_method": ("class R:\n    def __init__(self): self.t = []\n    def feed(self, q): self.t.append(q)\nr = R()\ndef fill(q): r.feed(q)\nfill(g)", "r.t[0](x)"),
    "await": ("import asyncio\nasync def fill(): T.append(g)\nasyncio.run(fill())", "T[0](x)"),
    "gen": ("def fill():\n    T.append(g)\n    yield 1\nlist(fill())", "T[0](x)"),
    "two_in_if": ("if K:\n    T.append(g)\n    D['n'] = len(T)\n    T.append(D['n'])", "T[0](x) + D['n'] - 1"),
    "two_in_if2": ("if K:\n    (T.append(g), D.update(n=len(T)))", "T[0](x) + D['n'] - 1 + len(T) - 1"),
    "two_in_if3": ("if len(T) == 0:\n    for q in (g,):\n        T.append(q); D['n'] = len(T)", "T[0](x) + D['n'] - 1 + len(T) - 1"),
    "if_register": ("if K:\n    D['r'] = register(g)", "T[0](x) + D['r'] - 1 + len(T) - 1"),
    "if_register2": ("if K:\n    R = register(g)", "T[0](x) + R - 1 + len(T) - 1"),
    "singled": ("q = functools.singledispatch(h)\nq.register(int)(g)", "q(x)"),
    "singled_asg": ("q = functools.singledispatch(h)\n_ = q.register(int, g)", "q(x)"),
    "exec": ("exec('T.append(g)')", "T[0](x)"),
    "eval": ("eval('T.append(g)')", "T[0](x)"),
    "eval_asg": ("_ = eval('register(g)')", "T[0](x)"),
    "thread": ("import threading\nt_ = threading.Thread(target=register, args=(g,))\nt_.start(); t_.join()", "T[0](x)"),
    "deco_cls": ("class deco:\n    def __init__(self, f): T.append(f)\n@deco\ndef z(x): return g(x)", "T[0](x)"),
    "deco_stack": ("def deco(f): T.append(f); return f\n@functools.wraps(h)\n@deco\ndef z(x): return g(x)", "T[0](x)"),
    "prop": ("class Z:\n    @property\n    def p(self): T.append(g)\nz = Z()\nz.p", "T[0](x)"),
    "prop_asg": ("class Z:\n    @property\n    def p(self): T.append(g)\nz = Z()\n_ = z.p", "T[0](x)"),
    "getitem": ("class Z:\n    def __getitem__(self, k): T.append(k)\nz = Z()\nz[g]", "T[0](x)"),
    "setitem": ("class Z:\n    def __setitem__(self, k, v): T.append(v)\nz = Z()\nz['a'] = g", "T[0](x)"),
    "setattr_": ("class Z:\n    def __setattr__(self, k, v): T.append(v)\nz = Z()\nz.a = g", "T[0](x)"),
    "lshift": ("class Z:\n    def __lshift__(self, v): T.append(v)\nz = Z()\nz << g", "T[0](x)"),
    "iadd": ("class Z:\n    def __iadd__(self, v): T.append(v); return self\nz = Z()\nz += g", "T[0](x)"),
    "contains": ("class Z:\n    def __contains__(self, v): T.append(v); return True\nz = Z()\nassert g in z", "T[0](x)"),
    "enum": ("import enum\nclass E(enum.Enum):\n    A = 1\n    def __init__(self, v): T.append(g)", "T[0](x)"),
    "dataclass_reg": ("import dataclasses\n@dataclasses.dataclass\nclass R:\n    f: object\n    def __post_init__(self): D['a'] = self\nR(g)", "D['a'].f(x)"),
    "namedtuple": ("import collections\nN = collections.namedtuple('N', 'f')\nT.append(N(g))", "T[0].f(x)"),
    "nested_attr": ("class C: pass\nC.sub = C()\nC.sub.t = []\nC.sub.t.append(g)", "C.sub.t[0](x)"),
    "tryexcept": ("try:\n    raise KeyError(g)\nexcept KeyError as e:\n    T.append(e.args[0])", "T[0](x)"),
    "global_rebind": ("G = h\ndef fill():\n    global G\n    G = g\nassert fill() is None", "G(x)"),
    "global_rebind_lam": ("G = h\nG = (lambda: g)()", "G(x)"),
    "chained": ("T.extend([]) or T.append(g)", "T[0](x)"),
    "ctx_gen": ("@contextlib.contextmanager\ndef reg(q):\n    T.append(q); yield\nwith reg(g): pass", "T[0](x)"),
    "ctx_stack": ("with contextlib.ExitStack() as s: s.callback(register, g)", "T[0](x)"),
    "method_ref": ("class R:\n    def __init__(self): self.t = []\n    def add(self, q): self.t.append(q)\nr = R()\nadd = r.add\nadd(g)", "r.t[0](x)"),
    "method_map": ("class R:\n    def __init__(self): self.t = []\n    def add(self, q): self.t.append(q)\nr = R()\n_ = [*map(r.add, [g])]", "r.t[0](x)"),
    "class_chain": ("class R:\n    def __init__(self): self.t = []\n    def add(self, q): self.t.append(q); return self\nr = R().add(g)", "r.t[0](x)"),
    "class_chain2": ("class R:\n    def __init__(self): self.t = []\n    def add(self, q): self.t.append(q); return self\nr = R()\nr.add(h).add(g)", "r.t[1](x)"),
    "make_obj": ("class R:\n    def __init__(self): self.t = []\n    def add(self, q): self.t.append(q); return self\ndef make(): return R()\nr = make()\nassert r.add(g)", "r.t[0](x)"),
    "star_call": ("register(*[g])", "T[0](x)"),
    "kw_star": ("put(**{'t': T, 'g': g})", "T[0](x)"),
    "list_of_tables": ("ALL = [T, D]\nALL[0].append(g)", "T[0](x)"),
    "dict_of_tables": ("ALL = {'t': T}\n_ = ALL['t'].append(g)", "T[0](x)"),
    "closure_fn": ("def mk(t):\n    def add(q): t.append(q)\n    return add\nadd = mk(T)\nadd(g)", "T[0](x)"),
    "closure_deco": ("def mk(t):\n    def add(q): t.append(q); return q\n    return add\n@mk(T)\ndef z(x): return g(x)", "T[0](x)"),
}  # fmt: skip

# The same of a table of another file.
FILLED_FROM_ELSEWHERE = {
    "comp": ("_ = [T.append(q) for q in (g, h)]", "T[0](x)"),
    "comp_reg": ("_ = [register(q) for q in (g, h)]", "T[0](x)"),
    "assert": ("assert register(g)", "T[0](x)"),
    "assert2": ("assert T.append(g) is None", "T[0](x)"),
    "lambda": ("(lambda: T.append(g))()", "T[0](x)"),
    "lambda_arg": ("(lambda t: t.append(g))(T)", "T[0](x)"),
    "map": ("list(map(T.append, [g]))", "T[0](x)"),
    "mapreg": ("_ = list(map(register, [g]))", "T[0](x)"),
    "cond": ("T.append(g) if K else None", "T[0](x)"),
    "cond_asg": ("_ = T.append(g) if K else None", "T[0](x)"),
    "walrus": ("if (q := T.append(g)) is None: pass", "T[0](x)"),
    "walrus2": ("(q := T).append(g)", "T[0](x)"),
    "if": ("if register(g): pass", "T[0](x)"),
    "with": ("with contextlib.suppress(Exception):\n    T.append(g)", "T[0](x)"),
    "withitem": ("with contextlib.nullcontext(T.append(g)): pass", "T[0](x)"),
    "withas": ("with contextlib.nullcontext(T) as t:\n    t.append(g)", "T[0](x)"),
    "for": ("for q in (g, h): T.append(q)", "T[0](x)"),
    "foralias": ("for t in (T, []): t.append(g)", "T[0](x)"),
    "foriter": ("for _ in [T.append(g)]: pass", "T[0](x)"),
    "aug": ("T += [g]", "T[0](x)"),
    "aug_attr": ("r.T += [g]", "T[0](x)"),
    "augcall": ("n = 0\nn += register(g)", "T[0](x)"),
    "put_asg": ("_ = put(T, g)", "T[0](x)"),
    "put_assert": ("assert put(T, g)", "T[0](x)"),
    "alias": ("t = T\nt.append(g)", "T[0](x)"),
    "alias_sub": ("t = D.setdefault('q', [])\nt.append(g)", "D['q'][0](x)"),
    "alias_meth": ("add = T.append\nadd(g)", "T[0](x)"),
    "deco": ("@deco('a')\ndef z(x): return g(x)", "T[0](x)"),
    "default": ("def z(q=register(g)): pass", "T[0](x)"),
    "classbody": ("class Z:\n    a = register(g)", "T[0](x)"),
    "method_deco": ("class Z:\n    @deco('a')\n    def go(x): return g(x)", "T[0](x)"),
    "ctor": ("a = Obj(g)", "Obj.all[0](x)"),
    "init_sub": ("class A(Base):\n    def go(self, x): return g(x)", "Base.registry['A']().go(x)"),
    "init_sub_tab": ("class A(Base):\n    def go(self, x): return g(x)", "REG['A']().go(x)"),
    "init_sub_tab_r": ("class A(r.Base):\n    def go(self, x): return g(x)", "REG['A']().go(x)"),
    "init_sub_inner": ("class O:\n    class A(Base):\n        def go(self, x): return g(x)", "REG['A']().go(x)"),
    "meta": ("class A(metaclass=M):\n    def go(self, x): return g(x)", "T[0]().go(x)"),
    "meta_base": ("class A(r.MB):\n    def go(self, x): return g(x)", "T[0]().go(x)"),
    "set_name": ("class A:\n    k = Field()\n    def go(self, x): return g(x)", "T[0]().go(x)"),
    "set_name2": ("class A:\n    k = Field()\n    def go(self, x): return g(x)", "Field.all[0]().go(x)"),
    "clsdeco": ("@deco('a')\nclass A:\n    def go(self, x): return g(x)", "T[0]().go(x)"),
    "clsdeco_init": ("@deco('a')\nclass A:\n    def __init__(self, x): self.x = g(x)", "T.copy()[0](x).x"),
    "helper": ("def fill(): return [T.append(q) for q in (g, h)]\nfill()", "T[0](x)"),
    "helper2": ("def fill(): return register(g)\nfill()", "T[0](x)"),
    "helper3": ("def fill():\n    if register(g): return 1\n_ = fill()", "T[0](x)"),
    "sub": ("D['a'] = g", "D['a'](x)"),
    "chain": ("go(g)", "T[0](x)"),
    "match": ("match register(g):\n    case _: pass", "T[0](x)"),
    "meth_in_base": ("class S(Obj): pass\na = S(g)", "Obj.all[0](x)"),
    "eval": ("eval('register(g)')", "T[0](x)"),
    "lamreg": ("reg2 = lambda q: register(q)\n_ = reg2(g)", "T[0](x)"),
    "partial": ("reg2 = functools.partial(register, g)\nassert reg2()", "T[0](x)"),
    "try": ("try: register(g)\nexcept Exception: pass", "T[0](x)"),
}  # fmt: skip

# What is told of a class, the class, and how it is reached.
TOLD = {
    "init_sub": ("class Base:\n    registry = {}\n    def __init_subclass__(cls, **k): Base.registry[cls.__name__] = cls", "class A(Base):\n    def go(self, x): return @@", "Base.registry['A']().go(x)"),
    "init_sub_init": ("class Base:\n    registry = {}\n    def __init_subclass__(cls, **k): Base.registry[cls.__name__] = cls", "class A(Base):\n    def __init__(self, x): self.x = @@", "Base.registry['A'](x).x"),
    "init_sub_tab": ("class Base:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls", "class A(Base):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_tab_get": ("class Base:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls", "class A(Base):\n    def __init__(self, x): self.x = @@", "D.get('A')(x).x"),
    "init_sub_grand": ("class Base:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls\nclass B(Base): pass", "class A(B):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_grand2": ("class Base:\n    registry = {}\n    def __init_subclass__(cls, **k): cls.registry[cls.__name__] = cls\nclass B(Base): pass", "class A(B):\n    def go(self, x): return @@", "Base.registry['A']().go(x)"),
    "init_sub_helper": ("def reg(c): D[c.__name__] = c\nclass Base:\n    def __init_subclass__(cls, **k): reg(cls)", "class A(Base):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_kw": ("class Base:\n    def __init_subclass__(cls, key=None, **k): D[key] = cls", "class A(Base, key='A'):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_mixin": ("class Mix:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls\nclass O: pass", "class A(O, Mix):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_generic": ("import typing\nQ = typing.TypeVar('Q')\nclass Base(typing.Generic[Q]):\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls", "class A(Base[int]):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_type": ("class Base:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls", "A = type('A', (Base,), {'go': lambda self, x: @@})", "D['A']().go(x)"),
    "init_sub_if": ("class Base:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls", "if True:\n    class A(Base):\n        def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_inner": ("class Base:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls", "class Out:\n    class A(Base):\n        def go(self, x): return @@", "D['A']().go(x)"),
    "init_sub_func": ("class Base:\n    def __init_subclass__(cls, **k): D[cls.__name__] = cls", "def mk():\n    class A(Base):\n        def go(self, x): return @@\nmk()", "D['A']().go(x)"),
    "meta_new": ("class M(type):\n    def __new__(m, n, b, ns):\n        c = super().__new__(m, n, b, ns)\n        D[n] = c\n        return c", "class A(metaclass=M):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "meta_self": ("class M(type):\n    reg = {}\n    def __init__(c, n, b, ns): M.reg[n] = c", "class A(metaclass=M):\n    def go(self, x): return @@", "M.reg['A']().go(x)"),
    "meta_base": ("class M(type):\n    def __init__(c, n, b, ns):\n        if b: c.reg[n] = c\nclass Base(metaclass=M):\n    reg = {}", "class A(Base):\n    def go(self, x): return @@", "Base.reg['A']().go(x)"),
    "meta_base_tab": ("class M(type):\n    def __init__(c, n, b, ns): D[n] = c\nclass Base(metaclass=M): pass", "class A(Base):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "meta_abc": ("import abc\nclass M(abc.ABCMeta):\n    def __init__(c, n, b, ns, **k): D[n] = c\nclass Base(metaclass=M): pass", "class A(Base):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "meta_prepare": ("class M(type):\n    @classmethod\n    def __prepare__(m, n, b): T.append(n); return {}", "class A(metaclass=M):\n    def go(self, x): return @@", "globals()[T[0]]().go(x)"),
    "meta_func": ("def M(n, b, ns):\n    D[n] = type(n, b, ns)\n    return D[n]", "class A(metaclass=M):\n    def go(self, x): return @@", "D['A']().go(x)"),
    "meta_call": ("class M(type):\n    def __call__(c, *a):\n        o = super().__call__(*a); T.append(o); return o\nclass Base(metaclass=M): pass", "class A(Base):\n    def go(self, x): return @@\na = A()", "T[0].go(x)"),
    "set_name": ("class Field:\n    def __set_name__(self, owner, name): D[name] = owner", "class A:\n    k = Field()\n    def go(self, x): return @@", "D['k']().go(x)"),
    "set_name_self": ("class Field:\n    all = {}\n    def __set_name__(self, owner, name): Field.all[name] = owner", "class A:\n    k = Field()\n    def go(self, x): return @@", "Field.all['k']().go(x)"),
    "set_name_deco": ("class Field:\n    def __init__(self, g): self.g = g\n    def __set_name__(self, owner, name): D[name] = self.g", "class A:\n    @Field\n    def go(self, x): return @@", "D['go'](None, x)"),
    "set_name_inst": ("class Field:\n    def __set_name__(self, owner, name): D[name] = owner\nF1 = Field()", "class A:\n    k = F1\n    def go(self, x): return @@", "D['k']().go(x)"),
    "method_deco": ("def reg(g):\n    D[g.__name__] = g\n    return g", "class A:\n    @reg\n    def go(self, x): return @@", "D['go'](None, x)"),
    "method_deco_args": ("def reg(n):\n    def w(g):\n        D[n] = g\n        return g\n    return w", "class A:\n    @reg('k')\n    def go(self, x): return @@", "D['k'](None, x)"),
    "method_default": ("def reg(g):\n    D['k'] = g\n    return g", "class A:\n    def go(self, x, q=reg(lambda x: @@)): return 1", "D['k'](x)"),
    "cls_deco": ("def reg(c):\n    D[c.__name__] = c\n    return c", "@reg\nclass A:\n    def go(self, x): return @@", "D['A']().go(x)"),
    "cls_deco_init": ("def reg(c):\n    D[c.__name__] = c\n    return c", "@reg\nclass A:\n    def __init__(self, x): self.x = @@", "D.get('A')(x).x"),
    "cls_deco_args": ("def reg(n):\n    def w(c):\n        D[n] = c\n        return c\n    return w", "@reg('A')\nclass A:\n    def go(self, x): return @@", "D['A']().go(x)"),
    "cls_deco_meth": ("class R:\n    t = {}\n    @classmethod\n    def reg(cls, n):\n        def w(c):\n            cls.t[n] = c\n            return c\n        return w", "@R.reg('A')\nclass A:\n    def go(self, x): return @@", "R.t['A']().go(x)"),
    "cls_deco_meth2": ("class R:\n    @classmethod\n    def reg(cls, n):\n        def w(c):\n            D[n] = c\n            return c\n        return w", "@R.reg('A')\nclass A:\n    def go(self, x): return @@", "D['A']().go(x)"),
}  # fmt: skip

# What reads a table, or changes something else; `g` plays no part.
NOT_FILLED = {
    "copied": "q = T.copy() + [g]",
    "measured": "q = len(T) + len([g])",
    "another": "Q = []\nQ.append(g)",
    "another through a function": "Q = []\nput(Q, g)",
    "a lambda that nobody calls": "q = lambda: T.append(g)",
    "a function that nobody calls": "def q(): T.append(g)",
    "an instance": "class Z:\n    k = None\n    def __init__(self, k): self.k = k\nz = Z(g)",
}  # fmt: skip
READ = "T.append(h)\ndef f(x): return T[0](x)\n"


def one_file(text: str, read: str, change: str = "x + 1") -> tuple[dict[str, str], dict[str, str]]:
    """A tree before and after a change."""
    text = f"{text}\ndef f(x): return {read}\n"
    return tuple({"pkg/__init__.py": "", "pkg/m.py": text.replace("@@", value)} for value in ("x", change))  # type: ignore[return-value]


def two_files(statement: str, read: str) -> tuple[dict[str, str], dict[str, str]]:
    files = {
        "pkg/__init__.py": "",
        "pkg/r.py": REGISTRIES,
        "pkg/mid.py": "from .r import register\ndef go(q): register(q)\n",
        "pkg/m.py": f"from .r import T, D, Base, M, Obj, Field, REG\nfrom . import ops\ndef f(x): return {read}\n",
    }
    ops = OTHER_FILE + statement + "\n"
    return {**files, "pkg/ops.py": ops.replace("@@", "x")}, {**files, "pkg/ops.py": ops.replace("@@", "x + 1")}


TREES = {
    **{name: one_file(ONE_FILE + statement, read) for name, (statement, read) in FILLED.items()},
    **{name: one_file(f"T = []\nD = {{}}\n{told}\n{derived}", read) for name, (told, derived, read) in TOLD.items()},
    **{f"elsewhere {name}": two_files(statement, read) for name, (statement, read) in FILLED_FROM_ELSEWHERE.items()},
}


def value_of(folder: Path, files: Mapping[str, str]) -> object:
    arm = arm_of(folder, files)
    effects = closure_of(files, "pkg.m:f").effects
    arm.loader.expect_effects((module, key, lazy) for (module, key), lazy in effects.items())
    return arm.get("pkg.m:f")(2)


@pytest.mark.parametrize("name", TREES)
def test_what_fills_a_registry_counts_and_is_done(name: str, tmp_path: Path) -> None:
    base, head = TREES[name]
    assert closure_of(base, "pkg.m:f").digest != closure_of(head, "pkg.m:f").digest
    assert [value_of(tmp_path, files) for files in (base, head)] == [2, 3]


@pytest.mark.parametrize("name", NOT_FILLED)
def test_what_leaves_a_registry_alone_does_not_count(name: str) -> None:
    text = f"{ONE_FILE}{NOT_FILLED[name]}\nT.append(h)"
    base, head = (closure_of(files, "pkg.m:f") for files in one_file(text, "T[0](x)"))
    assert base.digest == head.digest


# What a class is given, in its own file, to a function of another one that changes it.
HANDED_ON = {
    "by a static method": "class R:\n    t = {}\n    @staticmethod\n    def setup(): fill(R, g)\nR.setup()\n",
    "by a class method": "class R:\n    t = {}\n    @classmethod\n    def setup(cls, q): fill(cls, q)\nR.setup(g)\n",
    "by a decorator": "class R:\n    t = {}\n    @classmethod\n    def put(cls, q):\n        fill(cls, q)\n        return q\n"
    "@R.put\ndef k(x): return g(x)\n",
}


@pytest.mark.parametrize("how", HANDED_ON)
def test_a_class_that_is_handed_on_may_be_filled(how: str, tmp_path: Path) -> None:
    text = f"from pkg.u import fill\ndef g(x): return @@\n{HANDED_ON[how]}"
    trees = [{**files, "pkg/u.py": "def fill(c, q): c.t['a'] = q\n"} for files in one_file(text, "R.t['a'](x)")]
    assert closure_of(trees[0], "pkg.m:f").digest != closure_of(trees[1], "pkg.m:f").digest
    assert [value_of(tmp_path, files) for files in trees] == [2, 3]


# Statements that change nothing of what `f` reads, or of a library.
HARMLESS = {
    "a table of a library's functions": "import math\nTABLE = {'a': math.floor}\nTABLE['b'] = math.@@\n",
    "the result of a library's function": "import numpy as np\nB = np.append([1], ord('@@'[0]))\n",
    "a constant that a function is given": "from pkg.u import make\n_A = make(MAX, '@@')\n",
    "a constant that a function is given alone": "from pkg.u import make\nmake(MAX, '@@')\n",
    "a constant of another file": "from pkg.u import make, LIMITS\nfrom pkg import u\n_A = make(LIMITS, '@@')\n",
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_cannot_change_anything_does_not_count(what: str) -> None:
    text = f"MAX = -5\n{HARMLESS[what]}"
    read = "x + u.LIMITS[0]" if "LIMITS" in text else "x + MAX"
    trees = [
        closure_of({**files, "pkg/u.py": "LIMITS = (1, 2)\ndef make(a, b): return a\n"}, "pkg.m:f")
        for files in (one_file(text.replace("@@", name), read)[0] for name in ("ceil", "trunc"))
    ]
    assert trees[0].digest == trees[1].digest
    assert not trees[0].shared and not trees[0].effects
