"""``python -m stratos.cli`` is the ``stratos`` command."""

from stratos.cli.main import main

if __name__ == "__main__":
    main()
