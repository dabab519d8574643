-- Small values, and what the sweep deletes.

-- name: put_value
INSERT INTO toolwire.kept (owner, kind, {key_columns}, value, size, used)
VALUES (:owner, :kind, {key_values}, :value, :size, now())
ON CONFLICT (owner, kind, {key_index}) DO UPDATE SET value = excluded.value, size = excluded.size, used = now()

-- name: delete_value
DELETE FROM toolwire.kept WHERE owner = :owner AND kind = :kind AND {key_index} = :digest

-- name: is_expired
used < now() - :max_age * interval '1 second'

-- name: is_not_running
NOT EXISTS (SELECT 1 FROM toolwire.runs r WHERE r.id = h.id AND r.is_over = false)

-- name: has_expired
SELECT 1 WHERE EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.{is_expired} AND {is_not_running})
    OR EXISTS (SELECT 1 FROM toolwire.kept k WHERE k.{is_expired})
    OR EXISTS (SELECT 1 FROM toolwire.turns t WHERE t.used < now() - :turns_age * interval '1 second')

-- name: expired_holders
SELECT h.id FROM toolwire.holders h WHERE h.{is_expired} AND {is_not_running}
ORDER BY h.used LIMIT :most FOR UPDATE OF h SKIP LOCKED

-- name: expired_values
SELECT owner, kind, {key_index} FROM toolwire.kept WHERE {is_expired} ORDER BY used LIMIT :most FOR UPDATE SKIP LOCKED

-- name: least_used_holders
-- The most recently used row of the whole store stays, however large it is.
SELECT h.used, h.size, h.id FROM toolwire.holders h WHERE h.owner = :owner AND {is_not_running}
    AND h.id <> (SELECT l.id FROM toolwire.holders l ORDER BY l.used DESC, l.id DESC LIMIT 1)
ORDER BY h.used LIMIT :most FOR UPDATE OF h SKIP LOCKED

-- name: least_used_values
SELECT used, size, kind, {key_index} FROM toolwire.kept WHERE owner = :owner ORDER BY used LIMIT :most
FOR UPDATE SKIP LOCKED

-- name: shares
-- Bytes by owner.
SELECT owner, sum(size)::bigint FROM (
    SELECT owner, sum(size) AS size FROM toolwire.holders GROUP BY owner
    UNION ALL SELECT owner, sum(size) FROM toolwire.kept GROUP BY owner
) both_tables GROUP BY owner

-- name: stats
SELECT (SELECT coalesce(sum(size), 0)::bigint FROM toolwire.holders{by_share})
        + (SELECT coalesce(sum(size), 0)::bigint FROM toolwire.kept),
    (SELECT count(*) FROM toolwire.holders{by_share} WHERE kind = 'response'),
    (SELECT count(*) FROM toolwire.holders{by_share} WHERE kind = 'conversation'),
    (SELECT count(*) FROM toolwire.runs WHERE is_over = false),
    (SELECT count(*) FROM toolwire.members m WHERE {alive}),
    (SELECT count(*) FROM toolwire.turns)
