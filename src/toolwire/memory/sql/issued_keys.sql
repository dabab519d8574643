-- Issued keys. Every change has a number, so that a process reads only what changed since it last looked.

-- name: next_key_change
-- Locks the counter until the transaction ends: no change becomes visible after one with a higher number.
UPDATE toolwire.key_changes SET latest = latest + 1 RETURNING latest

-- name: issued_key
SELECT facts FROM toolwire.issued_keys WHERE name = :name

-- name: put_issued_key
INSERT INTO toolwire.issued_keys (name, facts, change) VALUES (:name, :facts, :change)
ON CONFLICT (name) DO UPDATE SET facts = excluded.facts, change = excluded.change

-- name: changed_keys
-- One row without a key if nothing has changed.
SELECT c.latest, k.change, k.facts FROM toolwire.key_changes c LEFT JOIN toolwire.issued_keys k ON k.change > :after
ORDER BY k.change LIMIT :most

-- name: dump_keys
WITH part AS (
    SELECT name, facts, length(facts) AS size_, row_number() OVER (ORDER BY name) AS number_
    FROM toolwire.issued_keys WHERE name > :a ORDER BY name LIMIT :rows
)
{within_bytes}

-- name: restore_key
INSERT INTO toolwire.issued_keys (name, facts, change) VALUES (:name, :facts, :change) ON CONFLICT DO NOTHING
