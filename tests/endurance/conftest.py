"""The engine and its trials, as tests/native has them."""

from tests.native.conftest import engine, keeper, open_folder, own_folder, trial

__all__ = ["engine", "keeper", "open_folder", "own_folder", "trial"]
