"""pytest plugin: `pytest --difftest-base A --difftest-head B` adds a test for each target and group of cases.

Without these options nothing is added and nothing heavy is imported. A target whose code is the same passes without
being executed; one that is unmeasured is skipped, with the reason. The fixture `difftest_arms` gives a user's own
test both versions, loaded side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from difftest.errors import DifftestError

if TYPE_CHECKING:
    from difftest.result import TargetResult
    from difftest.target import Arm

GROUPS = ("inside", "outside")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("difftest", "compare two versions of sampler code")
    group.addoption("--difftest-base", metavar="TREE", help="the version to compare with")
    group.addoption("--difftest-head", metavar="TREE", help="the version in question")
    group.addoption("--difftest-repo", metavar="DIR", help="git repository for revisions")
    group.addoption("--difftest-target", metavar="T", action="append", default=[], help="target name, glob or symbol")
    group.addoption("--difftest-examples", metavar="N", type=int, help="cases per target and group")


def pytest_configure(config: pytest.Config) -> None:
    if bool(config.getoption("--difftest-base")) != bool(config.getoption("--difftest-head")):
        raise pytest.UsageError("--difftest-base and --difftest-head go together")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the comparison's tests to what was collected."""
    if not config.getoption("--difftest-base"):
        return
    from difftest.survey import survey

    try:
        found = survey(
            config.getoption("--difftest-base"),
            config.getoption("--difftest-head"),
            _repo(config),
            config.getoption("--difftest-target"),
        )
    except DifftestError as error:
        raise pytest.UsageError(str(error)) from None
    parent = Comparison.from_parent(session, name="difftest", path=config.rootpath)
    for target in found:
        if target.code == "absent":
            continue
        for group in GROUPS if target.code == "changed" else GROUPS[:1]:
            items.append(
                ComparisonItem.from_parent(parent, name=f"{target.name}[{group}]", target=target.name, group=group)
            )


def _repo(config: pytest.Config) -> Path | None:
    repo = config.getoption("--difftest-repo")
    return Path(repo) if repo else None


class Comparison(pytest.Collector):
    """The node that the comparison's tests hang from."""

    def collect(self) -> Iterator[pytest.Item]:
        return iter(())


class Different(Exception):
    """Head differs from base; carries the result for the report."""

    def __init__(self, result: TargetResult) -> None:
        super().__init__(result.name)
        self.result = result


class ComparisonItem(pytest.Item):
    """One target on the cases inside, or outside, its contract."""

    def __init__(self, *, target: str, group: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.group = group

    def runtest(self) -> None:
        from difftest import api
        from difftest.result import Verdict

        result = api.run(
            api.RunOptions(
                base=self.config.getoption("--difftest-base"),
                heads=(self.config.getoption("--difftest-head"),),
                repo=_repo(self.config),
                targets=(self.target,),
                contract=self.group,
                examples=self.config.getoption("--difftest-examples"),
                jobs=1,
            )
        )
        (found,) = result.targets
        if found.verdict == Verdict.DIFFERENT:
            raise Different(found)
        if found.verdict == Verdict.UNMEASURED:
            pytest.skip(found.reason)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, DifftestError):
            return f"difftest: {excinfo.value}"
        if not isinstance(excinfo.value, Different):
            return super().repr_failure(excinfo, style)
        found = excinfo.value.result
        lines = [
            f"{found.name}: {found.cases.different} of {found.cases.executed} cases {self.group} the contract differ"
        ]
        for item in found.mismatches[:5]:
            index = f"[{', '.join(map(str, item.index))}]" if item.index else ""
            lines += [
                f"  {item.kind} at {item.leaf}{index}: base {item.base}, head {item.head}",
                f"    case {item.case}: {item.label}",
            ]
        return "\n".join(lines)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"difftest {self.name}"


class Arms(NamedTuple):
    """Both versions, loaded side by side in the test's own process."""

    base: Arm
    head: Arm


@pytest.fixture(scope="session")
def difftest_arms(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arms]:
    """Both versions: `difftest_arms.base.get("vllm.v1.outputs:LogprobsTensors")` is base's own class.

    The code runs in the test's process, without the supervisor's protection.
    """
    if not request.config.getoption("--difftest-base"):
        pytest.skip("needs --difftest-base and --difftest-head")
    from difftest.lift.load import load_arms

    trees = [request.config.getoption(f"--difftest-{side}") for side in ("base", "head")]
    with load_arms(trees, tmp_path_factory.mktemp("difftest-arms"), _repo(request.config)) as arms:
        yield Arms(*arms)
