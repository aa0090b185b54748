"""``python -m thawd``, the same as the command ``thawd``."""

from thawd.interrupts import interruptible


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported or read ends it as quietly as later."""
    with interruptible():
        from thawd import cli

        cli.main()


if __name__ == "__main__":
    main()
