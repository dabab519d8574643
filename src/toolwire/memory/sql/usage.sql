-- What turns used, one row for each turn; older rows are summed by hour.

-- name: usage_columns
id, span, at, hour, key, team, model, backend, dialect, outcome, turns, input, output, cached, cache_write, reasoning,
calls, notes, duration

-- name: usage_values
:id, :span, :at, :hour, :key, :team, :model, :backend, :dialect, :outcome, :turns, :input, :output, :cached,
:cache_write, :reasoning, :calls, :notes, :duration

-- name: put_usage
-- A row that is sent again is the same turn.
INSERT INTO toolwire.usage ({usage_columns}) VALUES ({usage_values}) ON CONFLICT (id) DO NOTHING

-- name: add_usage
INSERT INTO toolwire.usage AS u ({usage_columns}) VALUES ({usage_values}) ON CONFLICT (id) DO UPDATE SET
    turns = u.turns + excluded.turns, input = u.input + excluded.input, output = u.output + excluded.output,
    cached = u.cached + excluded.cached, cache_write = u.cache_write + excluded.cache_write,
    reasoning = u.reasoning + excluded.reasoning, calls = u.calls + excluded.calls, notes = u.notes + excluded.notes,
    duration = u.duration + excluded.duration

-- name: take_old_usage
DELETE FROM toolwire.usage WHERE id IN (
    SELECT id FROM toolwire.usage WHERE span = 0 AND at < :before ORDER BY at LIMIT :most
) RETURNING {usage_columns}

-- name: usage_sums
SELECT sum(turns)::bigint, sum(input)::bigint, sum(output)::bigint, sum(cached)::bigint, sum(cache_write)::bigint,
    sum(reasoning)::bigint, sum(calls)::bigint, sum(notes)::bigint, sum(duration)::bigint
