"""`python -m pipeline` is the same as `feedline`."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
