"""``python -m thawd``, the same as the command ``thawd``."""

from thawd.cli import main

main()
