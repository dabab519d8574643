-- Background runs and their events.

-- name: start_run
UPDATE toolwire.runs SET is_started = true WHERE id = :id AND epoch = :epoch AND is_over = false RETURNING epoch

-- name: cancel_run
UPDATE toolwire.runs SET is_cancelled = true WHERE id = :id AND owner = :owner AND is_over = false RETURNING epoch

-- name: cancelled_runs
SELECT id, epoch FROM toolwire.runs WHERE member = :member AND is_cancelled = true AND is_over = false ORDER BY id

-- name: own_run
SELECT epoch FROM toolwire.runs WHERE id = :id AND owner = :owner AND member = :member AND is_over = false

-- name: has_orphans
-- Whether there are runs whose process may be dead.
SELECT 1 FROM toolwire.runs r WHERE r.is_over = false
    AND NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = r.member AND {alive}) LIMIT 1

-- name: orphans
SELECT r.id, r.epoch FROM toolwire.runs r WHERE r.is_over = false
    AND NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = r.member) ORDER BY r.id LIMIT :limit

-- name: take_orphan
-- Only with this epoch: if another process took the run meanwhile, its epoch is higher.
UPDATE toolwire.runs SET member = :member, epoch = epoch + 1
WHERE id = :id AND epoch = :epoch AND is_over = false RETURNING epoch

-- name: claimed_runs
SELECT r.owner, r.epoch, r.plan, r.is_started, r.is_cancelled, coalesce((
        SELECT j.first + j.count FROM {journal} j WHERE j.{response} = r.id ORDER BY j.first DESC LIMIT 1
    ), 0), {record}
FROM toolwire.runs r JOIN toolwire.holders h ON h.id = r.id
WHERE r.member = :member AND r.id = ANY (:ids::text[]) AND r.is_over = false ORDER BY r.id

-- name: event
-- The chunk with the event of this number, or the last chunk before it.
SELECT j.first, j.count, j.frames FROM {journal} j JOIN toolwire.holders h ON h.id = j.{response}
WHERE j.{response} = :id AND h.owner = :owner AND j.first <= :number ORDER BY j.first DESC LIMIT 1
