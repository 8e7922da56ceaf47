"""Prints, for a target with an oracle: cases, those that the oracle speaks of, and labels where a release disagrees.

Run with TRITON_INTERPRET=1: `python agree_on_release.py TREE TARGET EVERY`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from difftest.call.values import own_copy
from difftest.cases import v1_rejection, v1_rejection_kernels, v2_sampling_mask
from difftest.errors import ApiChange
from difftest.lift.load import load_arms
from difftest.oracles.agreement import agrees
from difftest.target import Left, Target

MODULES = (v1_rejection, v1_rejection_kernels, v2_sampling_mask)


def main() -> None:
    tree, name, every = sys.argv[1:]
    (target,) = [each for module in MODULES for each in module.TARGETS if each.name == name]
    found = ask(tree, target, int(every))
    print(json.dumps(found))


def ask(tree: str, target: Target, every: int) -> tuple[int, int, list[str]]:
    assert target.prepare is not None and target.oracle is not None
    asked, apart = 0, []
    with tempfile.TemporaryDirectory() as folder, load_arms([tree], Path(folder)) as (arm,):
        cases = list(target.cases())[::every]
        for case in cases:
            pool = case.build()
            expected = target.oracle(pool)
            if expected is None:
                continue
            own = own_copy(arm, pool)
            try:
                call = target.prepare(arm, own)
            except ApiChange:
                continue
            asked += 1
            returned = call.fn(*call.args, **call.kwargs)
            seen, wanted = (own, expected.values) if isinstance(expected, Left) else (returned, expected)
            if not agrees(wanted, seen):
                apart.append(case.label)
    return len(cases), asked, apart


if __name__ == "__main__":
    main()
