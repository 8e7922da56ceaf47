"""What the terminal and the markdown report say of causes: groups, noise, laws, changed lines and who ran them."""

from __future__ import annotations

import io

import pytest
from report_results import target
from rich.console import Console

from difftest.reports import markdown, terminal
from difftest.reports.causes import change_lines, class_words, group_title
from difftest.result import Change, ChangedLine, Group, Identity, Mismatch, RunResult, TargetResult
