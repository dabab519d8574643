"""Calls written inside text: one incremental reader, and a table for each notation."""
