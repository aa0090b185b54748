"""The fixtures of the unit tests that tests of single modules with real processes use, too."""

from tests.unit.conftest import machine, place, tmp_path

__all__ = ["machine", "place", "tmp_path"]
