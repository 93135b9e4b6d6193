"""The command line. Each command is a thin module of its own; nothing heavy is imported to start."""

