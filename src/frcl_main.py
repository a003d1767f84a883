"""The command `frcl`: outside the package, so that Ctrl-C while the package is imported shows no traceback."""

import signal


def main() -> None:
    """Import the command line and run it."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a parent ignores it
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from frcl.cli import main as run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
