"""The command `chattts-triton`: one file a command, each with `add_parser` and `run`."""
