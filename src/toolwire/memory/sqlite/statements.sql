-- SQLite's own statements. `uptime` is the seconds since the machine started, `boot` the id of that start.

-- name: alive
-- The latest heartbeat of the member is at most a lease old.
m.boot = :boot AND m.beat <= :uptime AND m.beat + m.lease >= :uptime

-- name: judge
-- A member that has sent its heartbeats in time since `since`. A heartbeat more than half a lease after the previous
-- one resets `since`; members send four in a lease.
j.id = :judge AND j.boot = :boot AND j.beat <= :uptime AND j.beat + j.lease / 2 >= :uptime

-- name: dead
-- A member that sent no heartbeat for a lease in which the judge sent its own in time.
m.boot = :boot AND m.beat <= :uptime AND m.beat + m.lease < :uptime AND j.since + m.lease <= :uptime

-- name: strangers
-- Members with another clock: from an earlier start of the machine, or on another system that shares the file.
SELECT m.id, m.boot, m.beat, m.lease FROM members m JOIN members j ON {judge}
WHERE m.boot <> :boot OR m.beat > :uptime

-- name: join
INSERT OR REPLACE INTO members (id, host, socket, boot, beat, lease, since)
VALUES (:id, :host, '', :boot, :uptime, :lease, :uptime)

-- name: beat
UPDATE members SET beat = :uptime, since = CASE WHEN beat + lease / 2 < :uptime THEN :uptime ELSE since END
WHERE id = :member AND boot = :boot AND beat <= :uptime RETURNING 1

-- name: use_epoch
UPDATE epochs SET latest = max(latest, :epoch)

-- name: restore_item
INSERT INTO items (holder, made, place, id, owner, item, call_id)
SELECT :holder, :made, :place, :id, :owner, :item, coalesce(:call, '')
FROM holders WHERE id = :holder AND owner = :owner ON CONFLICT DO NOTHING

-- name: restore_events
INSERT INTO events (holder, first, owner, frames, count)
SELECT :holder, :first, :owner, :frames, :count
FROM holders WHERE id = :holder AND owner = :owner ON CONFLICT DO NOTHING

-- name: state
SELECT owner, status, (SELECT epoch FROM runs r WHERE r.id = h.id) FROM holders h WHERE h.id = :id

-- name: put_response
INSERT INTO holders (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
VALUES (:id, :owner, 'response', :created, now(), :size, :status, :previous, :conversation, :continuation, :fields,
    :response)
ON CONFLICT (id) DO UPDATE SET used = excluded.used, size = excluded.size, status = excluded.status,
    body = excluded.body

-- name: size_of_response
SELECT (SELECT coalesce(sum(length(item)), 0) FROM items WHERE holder = :id)
    + (SELECT coalesce(sum(length(frames)), 0) FROM events WHERE holder = :id)

-- name: link_response
UPDATE holders SET continuation = :continuation WHERE id = :id AND owner = :owner

-- name: put_run
INSERT INTO runs (id, owner, member, epoch, is_over, is_started, is_cancelled, plan)
VALUES (:id, :owner, :member, 1, 0, 0, 0, :plan)

-- name: end_run
UPDATE runs SET is_over = 1, plan = x'' WHERE id = :id

-- name: epoch_of_run
SELECT epoch FROM runs WHERE id = :id

-- name: count_runs
SELECT count(*), count(*) FILTER (WHERE owner = :owner) FROM runs WHERE is_over = 0

-- name: hold_run
SELECT is_cancelled FROM runs WHERE id = :id AND owner = :owner AND epoch = :epoch AND is_over = 0

-- name: is_running
SELECT 1 FROM runs WHERE id = :id AND owner = :owner AND is_over = 0

-- name: put_events
INSERT INTO events (holder, first, owner, frames, count, epoch) VALUES (:id, :first, :owner, :frames, :count, :epoch)
ON CONFLICT DO NOTHING

-- name: chunks
-- The chunks of a run from the event of this number on.
SELECT first, count, frames FROM events WHERE holder = :id AND owner = :owner AND first >= coalesce(
    (SELECT max(first) FROM events WHERE holder = :id AND first <= :number), 0) AND first + count > :number
ORDER BY first

-- name: value
SELECT value FROM kept WHERE owner = :owner AND kind = :kind AND key = :key AND used >= now() - :max_age
