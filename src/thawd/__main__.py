"""``python -m thawd``, the same as the command ``thawd``."""

from thawd.cli.interrupts import interruptible


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported or read ends it as quietly as later."""
    with interruptible():
        from thawd.cli import program

        program.main()


if __name__ == "__main__":
    main()
