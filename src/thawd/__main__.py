"""``python -m thawd``, the same as the command ``thawd``."""

from thawd.cli.interrupts import interruptible


def main() -> None:
    """Run the command line. Ctrl-C exits without a traceback, even while modules are imported or arguments parsed."""
    with interruptible():
        from thawd.cli import program

        program.run()


if __name__ == "__main__":
    main()
