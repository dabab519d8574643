-- Turns that the console keeps. They have bounds of their own, so that they cost no owner a response.

-- name: put_turn
INSERT INTO toolwire.turns AS t (id, owner, facts, content, size, used)
VALUES (:id, :owner, :facts, :content, :size, now())
ON CONFLICT (id) DO UPDATE SET facts = excluded.facts, content = excluded.content, size = excluded.size, used = now()
WHERE t.owner = excluded.owner

-- name: recent_turns
SELECT id, owner, facts, number FROM toolwire.turns
WHERE number > :after AND used >= now() - :turns_age * interval '1 second' ORDER BY number DESC LIMIT :limit

-- name: turn_content
SELECT content FROM toolwire.turns WHERE id = :id AND owner = :owner

-- name: delete_expired_turns
DELETE FROM toolwire.turns WHERE id IN (
    SELECT id FROM toolwire.turns WHERE used < now() - :turns_age * interval '1 second' ORDER BY used LIMIT :most
) RETURNING 1

-- name: turn_shares
-- Bytes by owner.
SELECT owner, sum(size)::bigint FROM toolwire.turns GROUP BY owner

-- name: oldest_turns
SELECT id, size FROM toolwire.turns WHERE owner = :owner ORDER BY used, number LIMIT :most

-- name: delete_turns
DELETE FROM toolwire.turns WHERE id = ANY (:ids::text[])
