"""How `shoal` ends, beside what an error's class says (`shoal.errors`)."""

EXIT_BAD_ARGUMENTS, EXIT_BUG, EXIT_INTERRUPTED = 4, 5, 130
