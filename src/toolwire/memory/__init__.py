"""Everything that outlives a turn: responses and conversations, reasoning stored by call, pending results."""
