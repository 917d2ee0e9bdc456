"""`python -m jaxjuice`."""

from jaxjuice.cli import main

if __name__ == "__main__":
    main()
