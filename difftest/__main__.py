"""`python -m difftest`."""

from difftest.cli import main

if __name__ == "__main__":
    main()
