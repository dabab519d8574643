"""The protocols clients speak to us.

Each module exports PATH, decode_request, StreamEncoder, encode_turn, encode_error and new_id.
"""
