"""What changed of the code is looked up while the worker starts, and no longer."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from difftest.run.causes import look_ahead
from tests.lift.small_trees import closure_of

TEXTS = [f"def f(x):\n    return x + {n}\n" for n in (1, 2)]


def tree(text: str) -> Any:
    return SimpleNamespace(tree=SimpleNamespace(read=lambda path: text.encode()))


def item(code: str) -> Any:
    base, head = (SimpleNamespace(closure=closure_of({"m.py": text}, "m:f")) for text in TEXTS)
    return SimpleNamespace(code=code, base=base, head=head, head_index=0)


def test_changed_code_is_looked_up_while_there_is_nothing_else_to_do() -> None:
    base, head = map(tree, TEXTS)
    planned = {3: item("same"), 5: item("changed"), 7: item("changed")}
    assert look_ahead(planned, base, [head], lambda: False) == {}
    times = count()
    found = look_ahead(planned, base, [head], lambda: next(times) < 1)
    assert list(found) == [5]
    assert found[5].lines == {"base": {"m.py": [2]}, "head": {"m.py": [1, 2]}}
    assert "runnable" not in vars(found[5])
    found = look_ahead(planned, base, [head], lambda: True)
    assert list(found) == [5, 7] and found[7].changes == found[5].changes
    assert vars(found[7])["runnable"] == {"base": {"m.py": {2}}, "head": {"m.py": {2}}}
