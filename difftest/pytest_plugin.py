"""pytest plugin: `pytest --difftest-base A --difftest-head B` adds a test for each target and group of cases.

Without these options nothing is added and nothing heavy is imported. A target whose code is the same passes without
being executed. One that is unmeasured is skipped, with the reason, and the session then ends with exit status 3, as
`difftest run` does; a failure beside it keeps its own exit status. A request that cannot be carried out is a usage
error of pytest, exit status 4, as an unknown option is. The fixture `difftest_arms` gives a user's own test both
versions, loaded side by side. Under `difftest capture` the sampler calls of all tests are recorded.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from difftest.errors import DifftestError, NothingCompared
from difftest.record.plugin import register

if TYPE_CHECKING:
    from difftest.target import Arm

GROUPS = ("inside", "outside")
TARGET, VERDICT = "difftest.target", "difftest.verdict"
"""The properties of a test's report that hold its target and the verdict of it; the JUnit file has them, too."""

NOTHING = "nothing to compare"
"""Name of the one test of a session whose versions share no target."""

PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
UNMEASURED_STATUS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("difftest", "compare two versions of sampler code")
    group.addoption("--difftest-base", metavar="TREE", help="the version to compare with")
    group.addoption("--difftest-head", metavar="TREE", help="the version in question")
    group.addoption("--difftest-repo", metavar="DIR", help="git repository for revisions")
    group.addoption("--difftest-target", metavar="T", action="append", default=[], help="target name, glob or symbol")
    group.addoption("--difftest-examples", metavar="N", type=int, help="cases per target")


def pytest_configure(config: pytest.Config) -> None:
    if bool(config.getoption("--difftest-base")) != bool(config.getoption("--difftest-head")):
        raise pytest.UsageError("--difftest-base and --difftest-head go together")
    if config.getoption("--difftest-base"):
        config.pluginmanager.register(Comparisons(config), "difftest-comparisons")
    # Tests may use a sampler without an engine, which would load the vLLM plugin.
    register()


def _repo(config: pytest.Config) -> Path | None:
    repo = config.getoption("--difftest-repo")
    return Path(repo) if repo else None


class Comparisons:
    """The comparison's tests of a session, and its exit status.

    With pytest-xdist, the process that starts the session looks up the targets and sets the exit status; its workers
    compare. The folder is theirs in common: a target is compared once, whoever has the tests of its groups.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        given = getattr(config, "workerinput", {}).get("difftest")
        self.worker = given is not None
        self.folder = Path()
        self.targets: list[list[str]] = []
        self.verdicts: dict[str, tuple[str, str]] = {}
        self.unmeasured = False
        if given is not None:
            self.folder, self.targets = Path(given["folder"]), given["targets"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if not self.worker:
            self.folder = Path(tempfile.mkdtemp(prefix="difftest-pytest-"))
            self.targets = _to_compare(self.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["difftest"] = {"folder": str(self.folder), "targets": self.targets}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        from difftest.run import forkserver

        with forkserver.kept():
            return (yield)

    def pytest_unconfigure(self) -> None:
        if not self.worker and self.folder.name:
            shutil.rmtree(self.folder, ignore_errors=True)

    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the comparison's tests to what was collected."""
        parent = Comparison.from_parent(session, name="difftest", path=self.config.rootpath)
        if not self.targets:
            from difftest.api import no_target

            reason = no_target(self.config.getoption("--difftest-target"))
            items.append(UnexecutedItem.from_parent(parent, name=NOTHING, code="absent", reason=reason))
        for target, code, reason in self.targets:
            if code != "changed":
                items.append(UnexecutedItem.from_parent(parent, name=target, code=code, reason=reason))
                continue
            for group in GROUPS:
                name = f"{target}[{group}]"
                items.append(
                    ComparisonItem.from_parent(parent, name=name, comparisons=self, target=target, group=group)
                )

    def compared(self, target: str) -> dict[str, Any]:
        """What `difftest run` finds of a target, in the form of its JSON.

        Raises:
            DifftestError: it cannot be compared.
        """
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        kept = self.folder / hashlib.sha256(target.encode()).hexdigest()
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.with_suffix(".new").write_text(json.dumps(self._run(target)), encoding="utf-8")
                kept.with_suffix(".new").rename(kept)
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return found

    def _run(self, target: str) -> dict[str, Any]:
        from difftest import api

        result = api.run(
            api.RunOptions(
                base=self.config.getoption("--difftest-base"),
                heads=(self.config.getoption("--difftest-head"),),
                repo=_repo(self.config),
                targets=(target,),
                examples=self.config.getoption("--difftest-examples"),
                jobs=1 if self.worker else None,
                explain=False,
            )
        )
        found: dict[str, Any] = result.to_json()["targets"][0]
        return found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = dict(report.user_properties)
        if report.when == "call" and VERDICT in found:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self.verdicts[str(found[TARGET])] = (str(found[VERDICT]), reason.removeprefix("Skipped: "))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        unmeasured = any(verdict == "unmeasured" for verdict, _ in self.verdicts.values())
        if unmeasured and session.exitstatus in PASSED and not self.worker:
            session.exitstatus = UNMEASURED_STATUS
            self.unmeasured = True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.verdicts:
            return
        from difftest.result import overall

        verdicts = [verdict for verdict, _ in self.verdicts.values()]
        counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).most_common())
        terminalreporter.ensure_newline()
        terminalreporter.line(f"difftest: {overall(verdicts)}. Targets: {counts}")
        for name, (verdict, reason) in self.verdicts.items():
            if verdict == "unmeasured":
                terminalreporter.line(f"  not compared: {name}: {reason}")
        if self.unmeasured:
            terminalreporter.line(f"  exit status {UNMEASURED_STATUS}: something asked for was not compared")


def _to_compare(config: pytest.Config) -> list[list[str]]:
    """Name, state of the code, and what is said of that, of each target that `difftest run` would plan."""
    from difftest.survey import survey

    targets = config.getoption("--difftest-target")
    try:
        found = survey(config.getoption("--difftest-base"), config.getoption("--difftest-head"), _repo(config), targets)
    except DifftestError as error:
        raise pytest.UsageError(f"difftest: {error}") from None
    named = bool(targets) and not any(c in target for target in targets for c in "*?[")
    return [[item.name, item.code, item.reason] for item in found if named or item.code != "absent"]


class Comparison(pytest.Collector):
    """The node that the comparison's tests hang from."""

    def collect(self) -> Iterator[pytest.Item]:
        return iter(())


class UnexecutedItem(pytest.Item):
    """A target that is not executed: its code is the same, or there is nothing to compare."""

    def __init__(self, *, code: str, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.code = code
        self.reason = reason

    def runtest(self) -> None:
        verdict = "identical" if self.code == "same" else "unmeasured"
        self.user_properties += [(TARGET, self.name), (VERDICT, verdict)]
        if verdict == "unmeasured":
            pytest.skip(self.reason)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"difftest {self.name}"


class Different(Exception):
    """Head differs from base; carries the target's result and how many cases of the group differ."""

    def __init__(self, found: Mapping[str, Any], differing: int) -> None:
        super().__init__(found["name"])
        self.found = found
        self.differing = differing


class ComparisonItem(pytest.Item):
    """One target on the cases inside, or outside, its contract."""

    def __init__(self, *, comparisons: Comparisons, target: str, group: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.comparisons = comparisons
        self.target = target
        self.group = group

    def runtest(self) -> None:
        try:
            found = self.comparisons.compared(self.target)
        except NothingCompared as error:
            self.user_properties += [(TARGET, self.target), (VERDICT, "unmeasured")]
            pytest.skip(str(error))
        self.user_properties += [(TARGET, self.target), (VERDICT, found["verdict"])]
        outside = found["outside_contract"]
        differing = outside if self.group == "outside" else found["cases"]["different"] - outside
        if differing:
            raise Different(found, differing)
        if found["verdict"] == "unmeasured":
            pytest.skip(found["reason"])
        if not self._executed(found):
            pytest.skip(f"no case is {self.group} the contract")

    def _executed(self, found: Mapping[str, Any]) -> int:
        outside = int(found["outside_executed"])
        return outside if self.group == "outside" else int(found["cases"]["executed"]) - outside

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, DifftestError):
            return f"difftest: {excinfo.value}"
        if not isinstance(excinfo.value, Different):
            return super().repr_failure(excinfo, style)
        found = excinfo.value.found
        count = f"{excinfo.value.differing} of {self._executed(found)} cases"
        lines = [f"{found['name']}: {count} {self.group} the contract differ"]
        own = [item for item in found["mismatches"] if item["contract"] == (self.group == "inside")]
        for item in own[:5]:
            index = f"[{', '.join(map(str, item['index']))}]" if item["index"] else ""
            lines += [
                f"  {item['kind']} at {item['leaf']}{index}: base {item['base']}, head {item['head']}",
                f"    case {item['case']}: {item['label']}",
            ]
        options = self.config.option
        words = ["difftest", "run", "--base", options.difftest_base, "--head", options.difftest_head]
        words += ["--repo", options.difftest_repo] if options.difftest_repo else []
        return "\n".join([*lines, f"  {shlex.join([*words, '--target', self.target])}"])

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
