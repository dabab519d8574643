-- Members and leases. Each engine defines the conditions `alive`, `judge` and `dead`.

-- name: member
SELECT id, host FROM toolwire.members m WHERE id = :id AND {alive}

-- name: members
SELECT id, host FROM toolwire.members m WHERE {alive} ORDER BY id LIMIT :most

-- name: dead_members
SELECT m.id FROM toolwire.members m JOIN toolwire.members j ON {judge} WHERE {dead} ORDER BY m.id FOR UPDATE OF m

-- name: delete_members
DELETE FROM toolwire.members WHERE id = ANY (:ids::text[])

-- name: delete_leases_of_members
DELETE FROM toolwire.leases WHERE member = ANY (:ids::text[])

-- name: leases
SELECT l.name, l.member, l.epoch FROM toolwire.leases l JOIN toolwire.members m ON m.id = l.member
WHERE {alive} ORDER BY l.name LIMIT :most

-- name: holder_of_lease
SELECT l.member, l.epoch FROM toolwire.leases l JOIN toolwire.members m ON m.id = l.member
WHERE l.name = :name AND {alive}

-- name: grant_lease
-- Returns no row if another member has the lease, alive or not, or if the requesting member is not alive.
INSERT INTO toolwire.leases AS l (name, member, epoch, step)
SELECT :name, m.id, {next_epoch}, 0 FROM toolwire.members m WHERE m.id = :member AND {alive}
ON CONFLICT (name) DO UPDATE SET member = l.member WHERE l.member = excluded.member
RETURNING epoch

-- name: abandoned_leases
-- Leases of members that were deleted: the one of this name, or all if it is empty.
SELECT l.name, l.epoch FROM toolwire.leases l
WHERE (l.name = :name OR :name = '') AND NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = l.member)

-- name: drop_lease
-- Only with this epoch: if another process took the lease meanwhile, its epoch differs.
DELETE FROM toolwire.leases WHERE name = :name AND epoch = :epoch

-- name: hold_lease
SELECT 1 FROM toolwire.leases WHERE name = :name AND member = :member AND epoch = :epoch FOR SHARE

-- name: has_dead_members
SELECT 1 WHERE EXISTS (SELECT 1 FROM toolwire.members m WHERE NOT ({alive})) OR EXISTS (
    SELECT 1 FROM toolwire.leases l WHERE NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = l.member))
