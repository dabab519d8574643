"""Several worker processes on one machine, and the supervisor that starts, watches and replaces them."""
