"""What is particular to a package under test: which of its names need a stand-in, what of it is looked at. One module a
package."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from difftest.lift.standins import StandIns


def standins_for(package: str, host: str | None = None, facts: Mapping[str, Any] | None = None) -> StandIns:
    """The stand-ins of a package's profile; none when it has no profile.

    Args:
        package: top-level package of the code under test.
        host: take the real objects from the installed package of this name.
        facts: what is known of the host that is stood in for (:mod:`difftest.record.host`).
    """
    profile = _profile(package)
    if profile is None:
        return StandIns({}, host)
    return StandIns({item.name: item for item in profile.STANDINS}, host, profile.BUILT, facts)


def noise_functions(package: str) -> tuple[str, ...]:
    """Symbols of the package's functions that give its kernels their uniform numbers, of all versions."""
    profile = _profile(package)
    return () if profile is None else tuple(profile.NOISE)


def concerns(package: str) -> tuple[str, ...]:
    """The files and folders of the package, in all versions, that the catalog's targets are of."""
    profile = _profile(package)
    return () if profile is None else tuple(profile.CONCERNS)


def _profile(package: str) -> Any:
    if importlib.util.find_spec(f"{__name__}.{package}") is None:
        return None
    return importlib.import_module(f"{__name__}.{package}")
