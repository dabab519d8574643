"""The configuration: settings, how they are read and checked, and where each comes from."""
