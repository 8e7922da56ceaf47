"""Which version is faster, by how much, and when the answer is "cannot tell"."""
