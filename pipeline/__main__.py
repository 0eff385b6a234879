"""`python -m pipeline` is the same as `feedline`."""

from pipeline.entry import main

if __name__ == "__main__":
    main()
