"""Everything that outlives a turn: responses and conversations, reasoning kept by call, results that wait."""
