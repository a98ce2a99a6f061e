"""One Task a file; each module's TASK is what a plan's [task] name finds."""
