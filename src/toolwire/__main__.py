"""`python -m toolwire`."""

from toolwire.imports import without_working_directory

if __name__ == "__main__":
    without_working_directory()  # `-m` puts it first; nothing may be imported from there

    from toolwire.cli import main

    main()
