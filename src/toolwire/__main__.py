"""`python -m toolwire`."""

from toolwire.imports import without_working_directory

if __name__ == "__main__":
    without_working_directory()  # which `-m` has put first; before anything else is imported from there

    from toolwire.cli import main

    main()
