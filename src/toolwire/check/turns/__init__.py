"""The rules that a turn by itself can break, streamed or plain: pure stages, bytes in, findings out."""
