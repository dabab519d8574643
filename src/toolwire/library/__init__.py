"""The engine without a network, for other programs. Everything public of it is exported by `toolwire`."""
