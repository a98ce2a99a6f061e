"""The commands of `agdopt`: in each module add(commands) makes its arguments, run(args) its exit code."""
