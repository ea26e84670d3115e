"""What the commands print: the console, progress of a run, tables, listings, and TensorBoard files."""
