"""The configuration: reads and checks settings, and finds the source of each."""
