"""The protocols that clients speak to us.

Each package exports PATH, decode_request, StreamEncoder, encode_turn, encode_error, new_id and recognises.
"""
