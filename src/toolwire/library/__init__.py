"""The engine without a network, for other programs. `toolwire` exports its public names."""
