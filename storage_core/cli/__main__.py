"""``python -m storage_core.cli``."""

from storage_core.cli import main

if __name__ == "__main__":
    main()
