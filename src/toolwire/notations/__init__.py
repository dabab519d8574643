"""Calls written inside text: one incremental reader, and a table for each way to write them."""
