"""``python -m thawd``, the same as the command ``thawd``."""

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as quietly as later."""
    try:
        from thawd import cli
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    cli.main()


if __name__ == "__main__":
    main()
