"""`python -m toolwire`."""

from toolwire.cli import main

if __name__ == "__main__":
    main()
