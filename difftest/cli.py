"""The command line: parse, call :mod:`difftest.api`, exit. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import difftest
from difftest.errors import DifftestError, NotWritten

if TYPE_CHECKING:
    from difftest.run.supervisor import Supervisor

_WRITES = ("--format", "--write-expect")
_TREE = "a revision, WORKTREE, a folder, a wheel or sdist file, or pypi:NAME==VERSION"

_device = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where both versions run."
)
_exceptions = click.option(
    "--exceptions",
    type=click.Choice(["type", "message", "any"]),
    default="message",
    show_default=True,
    help="What must be the same where both raise: the type, the type and the message, or nothing.",
)


class _Command(click.Command):
    """A command that refuses an option which is given twice and taken once: the earlier value would be lost."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            once = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
            if once and given.count(option) > 1:
                raise click.UsageError(
                    f"{option.opts[0]} is given {given.count(option)} times; it takes one value", ctx
                )
        return super().parse_args(ctx, args)


class _Group(click.Group):
    command_class = _Command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(difftest.__version__, prog_name="difftest")
def cli() -> None:
    """Does a change to LLM sampler code change what the sampler does?

    Two versions are lifted out of their trees, loaded in one interpreter and given the same cases; every byte that
    differs is reported. Exit codes: 0 identical or expected, 1 different, 2 usage or tool error, 3 unmeasured,
    4 a speed gate failed, 130 interrupted.
    """


@cli.command()
@click.option("--base", metavar="TREE", help=f"The version to compare with: {_TREE} [default: the merge base].")
@click.option("--head", "heads", metavar="TREE", multiple=True, help="The version in question; may be given again.")
@click.option("--repo", type=click.Path(path_type=Path), help="Git repository for revisions [default: around here].")
@click.option("--target", "targets", multiple=True, metavar="T", help="Target name, glob or module:qualname.")
@click.option("--cases", "cases", metavar="KIND,...", help="Kinds of cases: grid, fuzz, recorded.")
@click.option("--case", metavar="ID|FILE", help="Run only the case with this id, or the one kept in this file.")
@click.option("--budget", type=float, metavar="SECONDS", help="Time for the whole run.")
@click.option("--examples", type=int, metavar="N", help="Cases per target: so many of the grid, so many drawn.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the cases that a fuzz draws.")
@_device
@click.option("--host", type=click.Choice(["vllm"]), help="Take the real objects from the installed package.")
@click.option("--expect", type=click.Path(path_type=Path), metavar="FILE", help="Manifest of expected differences.")
@click.option(
    "--write-expect", type=click.Path(path_type=Path), metavar="FILE", help="Draft such a manifest, or add to it."
)
@_exceptions
@click.option(
    "--cases-from",
    type=click.Path(path_type=Path, resolve_path=True),
    multiple=True,
    metavar="FILE",
    help="A case file.",
)
@click.option(
    "--recorded",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="DIR|FILE",
    help="A capture, whose calls are cases, or kept cases.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for reduced cases, reproducers.")
@click.option(
    "--shrink",
    type=float,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --out, time for a case, of at most 3 a target; up to 3 times that while it is large.",
)
@click.option("--all", "execute_same", is_flag=True, help="Execute targets whose code is the same, too.")
@click.option("--lines", is_flag=True, help="Say which lines of each target's code no case executes. Slower.")
@click.option("--contract-only", is_flag=True, help="Leave out inputs that production never sends.")
@click.option("--no-explain", is_flag=True, help="Do not look for the cause of what differs.")
@click.option("--jobs", type=int, metavar="N", help="Processes that run cases [default: cores].")
@click.option("--timeout", type=float, metavar="SECONDS", help="Time for one call before it counts as hanging.")
@click.option("--format", "formats", multiple=True, metavar="KIND:PATH", help="json, markdown, html, junit or github.")
def run(
    heads: tuple[str, ...],
    formats: tuple[str, ...],
    cases: str | None,
    write_expect: Path | None,
    contract_only: bool,
    no_explain: bool,
    **options: Any,
) -> int:
    """Run both versions on the same cases and report every difference."""
    supervisor = _supervisor(options["device"], options["jobs"])  # first: it takes longest
    from rich.console import Console

    from difftest import api
    from difftest.expect import check_draft, draft
    from difftest.output import Formats, Progress, check_place, deliver, show, write_text

    outputs = Formats.parse(formats)
    if write_expect is not None:
        check_place(write_expect)
    before = "" if write_expect is None else check_draft(write_expect)
    base = options.pop("base")
    if base is None:
        heads = heads or ("HEAD",)
        base = api.merge_base_of(heads, options["repo"])
    request = api.RunOptions(
        base=base,
        heads=heads,
        cases=tuple(k for k in (cases or "").split(",") if k),
        contract="inside" if contract_only else "all",
        explain=not no_explain,
        command=_command(),
        **options,
    )
    lost: list[str] = []
    with Progress(Console(stderr=True)) as progress:
        try:
            result = api.run(request, progress, supervisor)
        except NotWritten as error:
            result = error.result
            lost.append(str(error))
    deliver(result, [show], outputs, lost)
    if write_expect is not None:
        made = draft(result, before, f"--write-expect {write_expect}")
        try:
            write_text(write_expect, made.text)
        except DifftestError as error:
            lost.append(str(error))
    _refuse(lost)
    if write_expect is not None:
        entries = f"{made.added} new {'entry' if made.added == 1 else 'entries'}"
        kept = f", after the {made.kept} that it had" if made.kept else ""
        click.echo(f"draft of {entries} written to {write_expect}{kept}; give each its reason", err=True)
        for words in made.stale:
            click.echo(f"the entry {words} matches nothing that this run shows; remove it if so", err=True)
    return result.exit_code


@cli.command()
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CAPTURE...")
@click.option("--base", required=True, metavar="TREE", help=f"The version that was captured: {_TREE}.")
@click.option("--head", "heads", required=True, metavar="TREE", multiple=True, help="The version in question.")
@click.option("--repo", type=click.Path(path_type=Path), help="Git repository for revisions [default: around here].")
@click.option("--repeat", type=int, default=5, show_default=True, metavar="N", help="Calls in each arm; all exact.")
@click.option("--target", "targets", multiple=True, metavar="T", help="Only the sites of this name, glob or symbol.")
@click.option("--case", metavar="ID", help="Replay only the call with this id.")
@_device
@click.option("--host", type=click.Choice(["vllm"]), help="Take the real objects from the installed package.")
@click.option("--expect", type=click.Path(path_type=Path), metavar="FILE", help="Manifest of expected differences.")
@_exceptions
@click.option("--budget", type=float, metavar="SECONDS", help="Time for the whole replay.")
@click.option("--jobs", type=int, metavar="N", help="Processes that run cases [default: cores].")
@click.option("--timeout", type=float, metavar="SECONDS", help="Time for one call before it counts as hanging.")
@click.option("--format", "formats", multiple=True, metavar="KIND:PATH", help="json, markdown, html, junit or github.")
def replay(captures: tuple[Path, ...], formats: tuple[str, ...], **options: Any) -> int:
    """Make the captured calls of a live engine again on both versions, from the recorded state."""
    supervisor = _supervisor(options["device"], options["jobs"])  # first: it takes longest
    from rich.console import Console

    from difftest.output import Formats, Progress, deliver, show, show_replay
    from difftest.record.replay import replay as replayed

    outputs = Formats.parse(formats)
    with Progress(Console(stderr=True)) as progress:
        result = replayed(captures, observer=progress, supervisor=supervisor, command=_command(), **options)
    lost: list[str] = []
    deliver(result, [show_replay, show], outputs, lost)
    _refuse(lost)
    return result.exit_code


@cli.command()
@click.option("--base", metavar="TREE", help=f"The version to compare with: {_TREE} [default: the merge base].")
@click.option("--head", "heads", metavar="TREE", multiple=True, help="The version in question; may be given again.")
@click.option("--repo", type=click.Path(path_type=Path), help="Git repository for revisions [default: around here].")
@click.option("--target", "targets", multiple=True, metavar="T", help="Target name, glob or module:qualname.")
@click.option(
    "--shapes", default="quick", show_default=True, metavar="grid|quick|FILE", help="FILE: a label or glob a line."
)
@click.option("--budget", type=float, default=30.0, show_default=True, metavar="SECONDS", help="For the whole bench.")
@click.option("--max-regression", metavar="PERCENT", help="Exit 4 when a shape's whole interval is beyond it.")
@_device
@click.option("--host", type=click.Choice(["vllm"]), help="Take the real objects from the installed package.")
@click.option(
    "--cases-from",
    type=click.Path(path_type=Path, resolve_path=True),
    multiple=True,
    metavar="FILE",
    help="A case file.",
)
@click.option("--all", "execute_same", is_flag=True, help="Time targets whose code is the same, too.")
@click.option("--force", is_flag=True, help="Time shapes whose outputs differ, too; they are marked.")
@click.option("--format", "formats", multiple=True, metavar="KIND:PATH", help="json, markdown, html or svg.")
def bench(
    base: str | None, heads: tuple[str, ...], formats: tuple[str, ...], max_regression: str | None, **options: Any
) -> int:
    """Time both versions on the same inputs: faster, slower, no change, or that nobody can tell."""
    from rich.console import Console

    from difftest import api
    from difftest.output import Formats, deliver
    from difftest.timing.bench import BenchOptions
    from difftest.timing.bench import bench as timed
    from difftest.timing.show import BenchProgress, percentage, show_bench

    outputs = Formats.parse(formats, "difftest.reports.bench_files")
    limit = None if max_regression is None else percentage(max_regression)
    if base is None:
        heads = heads or ("HEAD",)
        base = api.merge_base_of(heads, options["repo"])
    command = _command()
    request = BenchOptions(base=base, heads=heads, max_regression=limit, command=command, **options)
    with BenchProgress(Console(stderr=True)) as progress:
        result = timed(request, progress)
    lost: list[str] = []
    deliver(result, [show_bench], outputs, lost)
    _refuse(lost)
    return result.exit_code


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--drop-first", is_flag=True, help="Leave out the first pair: the machine was cold.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Judge only this metric.")
@click.option("--format", "formats", multiple=True, metavar="json:PATH", help="Write the result as JSON.")
def pairs(files: tuple[Path, ...], drop_first: bool, metrics: tuple[str, ...], formats: tuple[str, ...]) -> int:
    """Judge end-to-end results made elsewhere as pairs: an effect inside the spread is flat, not a win."""

    from difftest.output import json_path, stdout
    from difftest.timing.pairs import judge_pairs, read_runs
    from difftest.timing.show import show_pairs

    path = json_path(formats)
    show_pairs(judge_pairs(read_runs(files), drop_first=drop_first, metrics=metrics), stdout(), path)
    return 0


@cli.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="A new folder for the capture.")
@click.option("--site", multiple=True, metavar="GLOB", help="What to record [default: the sampler calls of V1 and V2].")
@click.option("--max-calls", type=int, metavar="N", help="Calls that each process records.")
@click.option("--max-bytes", type=int, metavar="N", help="Bytes that each process records.")
@click.option("--one-in", type=int, default=1, metavar="N", help="Record one step in N.")
@click.option("--redact", is_flag=True, help="Replace request ids by hashes whose key is thrown away.")
@click.option("--wait", is_flag=True, help="Inputs are on disk before each call goes on. Slow.")
@click.option("--show", "shown", type=click.Path(path_type=Path), metavar="DIR", help="Say what is in a capture.")
def capture(command: tuple[str, ...], out: Path | None, shown: Path | None, **options: Any) -> int:
    """Run a command with the recorder on in every vLLM process that it starts."""
    from difftest.record import command as recording

    if shown is not None:
        if command or out is not None:
            raise click.UsageError("--show stands alone: difftest capture --show DIR.")

        from difftest.output import show_capture, stdout

        show_capture(recording.show(shown), stdout())
        return 0
    if out is None:
        raise click.UsageError("capture needs --out DIR, a new folder: difftest capture --out DIR -- COMMAND...")
    return recording.capture(out, command, **options)


@cli.command()
@click.option("--base", metavar="TREE", help=f"Say what each target reaches in this version: {_TREE}.")
@click.option("--head", metavar="TREE", help="Say what the change from base to this version affects.")
@click.option("--repo", type=click.Path(path_type=Path), help="Git repository for revisions [default: around here].")
@click.option("--target", "targets", multiple=True, metavar="T", help="Target name, glob or module:qualname.")
@click.option(
    "--cases-from",
    type=click.Path(path_type=Path, resolve_path=True),
    multiple=True,
    metavar="FILE",
    help="A case file.",
)
@click.option("--format", "formats", multiple=True, metavar="json:PATH", help="Write the list as JSON.")
def targets(formats: tuple[str, ...], **options: Any) -> int:
    """List the catalog; with trees, what each target reaches and what a change affects."""

    from difftest.output import json_path, show_survey, stdout
    from difftest.survey import survey

    if options["head"] and not options["base"]:
        raise click.UsageError(f"--head {options['head']} needs --base, the version that it is compared with.")
    path = json_path(formats)
    show_survey(survey(**options), stdout(), path, asked=bool(options["targets"]))
    return 0


@cli.command()
@click.option("--tree", required=True, metavar="TREE", help=f"The version: {_TREE}.")
@click.option("--target", required=True, metavar="T", help="Target name, glob or module:qualname.")
@click.option("--repo", type=click.Path(path_type=Path), help="Git repository for revisions [default: around here].")
def extract(tree: str, target: str, repo: Path | None) -> int:
    """Print the lifted source, each piece with the file and lines it comes from."""
    from difftest.survey import extract_target

    click.echo(extract_target(tree, target, repo), nl=False)
    return 0


@cli.command()
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Leave the demonstration's repository here."
)
def demo(keep: Path | None) -> int:
    """The whole job on trees that the package carries; offline, in seconds."""

    from difftest.demo.show import demo as show_demo
    from difftest.output import stdout

    return show_demo(stdout(), keep)


@cli.command()
@click.option("--repo", type=click.Path(path_type=Path), help="Git repository [default: around here].")
@click.option("--range", "revisions", required=True, metavar="A..B", help="The commits, as git understands it.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where commits are run: here, or on a Ray cluster.",
)
@click.option("--target", "targets", multiple=True, metavar="T", help="Target name, glob or module:qualname.")
@click.option("--budget", type=float, metavar="SECONDS", help="Time for each commit.")
@click.option("--examples", type=int, metavar="N", help="Cases per target.")
@click.option("--jobs", type=int, metavar="N", help="Processes that run cases [default: cores].")
@click.option("--format", "formats", multiple=True, metavar="json:PATH", help="Write all results as JSON.")
def sweep(revisions: str, engine: str, formats: tuple[str, ...], **options: Any) -> int:
    """Compare every commit of a range that touches a target with its parent."""

    from difftest import api
    from difftest.output import json_path, show_sweep, stdout
    from difftest.sweep import sweep as swept

    path = json_path(formats)
    return show_sweep(swept(api.RunOptions(base="", heads=("",), **options), revisions, engine), stdout(), path)


@cli.command()
@click.option("--repo", type=click.Path(path_type=Path), help="Git repository [default: around here].")
@click.option("--good", required=True, metavar="REV", help="A revision whose outcome is right.")
@click.option("--bad", required=True, metavar="REV", help="A later revision that differs from it.")
@click.option("--case", required=True, metavar="FILE", help="A kept case, as difftest run --out writes them.")
@click.option("--target", "targets", multiple=True, metavar="T", help="Target name [default: the case's own].")
@click.option(
    "--cases-from",
    type=click.Path(path_type=Path, resolve_path=True),
    multiple=True,
    metavar="FILE",
    help="A case file.",
)
@_device
@_exceptions
@click.option("--timeout", type=float, metavar="SECONDS", help="Time for one call before it counts as hanging.")
def bisect(good: str, bad: str, **options: Any) -> int:
    """Find the first commit at which a case's outcome changes.

    Exit codes: 1 such a commit was found, 2 usage or tool error, 3 there is none, or it cannot be told.
    """

    from difftest import api
    from difftest.bisect import bisect as bisected
    from difftest.output import show_bisection, stdout

    request = api.RunOptions(base="", heads=("",), **options)
    return show_bisection(bisected(request, good, bad, lambda line: click.echo(line, err=True)), stdout())


def _supervisor(device: str, jobs: int | None) -> Supervisor:
    """A supervisor whose worker has begun, for as long as the command runs."""
    from difftest.run.supervisor import started

    return click.get_current_context().with_resource(started(device, jobs))


def _refuse(lost: list[str]) -> None:
    """A result that could not be written where it was asked for is no success.

    Raises:
        DifftestError: there is anything of that kind.
    """
    if lost:
        raise DifftestError("; ".join(lost))


def _command() -> str:
    """The command line for a report, without the files that it was asked to write."""
    words = iter(sys.argv[1:])
    kept = ["difftest"]
    for word in words:
        if word in _WRITES:
            next(words, None)
        elif not word.startswith(tuple(f"{name}=" for name in _WRITES)):
            kept.append(word)
    return shlex.join(kept)


def main() -> None:
    """Entry point: exit codes and one-line errors."""
    try:
        code = cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):  # click makes the first of the second
        click.echo("difftest: interrupted", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except DifftestError as error:
        click.echo(f"difftest: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        code = 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = error.filename or "standard output"
        click.echo(f"difftest: {place} cannot be written: {error.strerror}; make room there", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left of it at its end
        code = 2
    raise SystemExit(code or 0)
