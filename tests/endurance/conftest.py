"""The fixtures for the engine and its trials, from tests/native."""

from tests.native.conftest import engine, keeper, open_folder, own_folder, trial

__all__ = ["engine", "keeper", "open_folder", "own_folder", "trial"]
