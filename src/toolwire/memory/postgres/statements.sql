-- PostgreSQL's own statements, and the operations that are one statement each.
--
-- All parts of a statement see the tables as they were when it began, even after waiting for a lock. So every decision
-- depends on the row that is written or locked: the writer's guard, whether the response is over, the next place in a
-- conversation. No two parts write the same row; PostgreSQL would ignore the second write.
--
-- The function `count_runs` is the exception: a query in a volatile function sees what was committed before that query.
-- So runs are counted after waiting for the lock, and no other run is added until this statement is committed.
--
-- A statement that is repeated because its connection was lost finds its own token, and changes nothing.

-- name: alive
-- A member is alive until its lease ends. While the database was down no member could extend it, so each has a whole
-- lease from the start of the database.
greatest(m.until, pg_postmaster_start_time() + m.lasts * interval '1 second') > now()

-- name: judge
-- A member that has sent its heartbeats in time since `since`. A heartbeat more than half a lease after the previous
-- one resets `since`; members send four in a lease.
j.id = :judge AND j.until > now() + j.lasts / 2 * interval '1 second'

-- name: dead
-- A member that sent no heartbeat for a lease in which the judge sent its own in time.
NOT {alive} AND j.since <= now() - m.lasts * interval '1 second'

-- name: join
INSERT INTO toolwire.members (id, host, socket, lasts, until)
VALUES (:id, :host, '', :lease, now() + :lease * interval '1 second')
ON CONFLICT (id) DO UPDATE SET host = excluded.host, lasts = excluded.lasts, until = excluded.until,
    since = excluded.since

-- name: beat
UPDATE toolwire.members SET until = now() + lasts * interval '1 second',
    since = CASE WHEN until < now() + lasts / 2 * interval '1 second' THEN now() ELSE since END
WHERE id = :member RETURNING 1

-- name: restore_item
WITH holder AS (
    UPDATE toolwire.holders SET places = greatest(places, :place::bigint + 1)
    WHERE id = :holder AND owner = :owner RETURNING 1
)
INSERT INTO toolwire.items (holder, owner, made, place, id, whole_id, call, item)
SELECT :holder, :owner, :made, :place, :id, :whole_id, :call, :item FROM holder ON CONFLICT DO NOTHING

-- name: restore_events
INSERT INTO toolwire.journal (response, first, count, epoch, frames)
SELECT :holder, :first, :count, 0, :frames FROM toolwire.holders WHERE id = :holder AND owner = :owner
ON CONFLICT DO NOTHING

-- name: guard_none
SELECT 1 AS held WHERE true {room}

-- name: guard_fence
-- One row, locked, if the writer may write: a process that takes over the run waits for the writer, and vice versa.
UPDATE toolwire.runs SET is_over = :is_over, plan = CASE WHEN :is_over THEN '' ELSE plan END
WHERE id = :guard AND epoch = :epoch AND NOT is_over {room} RETURNING 1 AS held

-- name: guard_lease
SELECT 1 AS held FROM toolwire.leases WHERE name = :guard AND member = :member AND epoch = :epoch {room}
FOR SHARE

-- name: save
WITH {runs} guard AS ({guard}),
given AS (
    SELECT * FROM unnest(:made::smallint[], :place::bigint[], :item_id::text[], :whole_id::bytea[], :call::text[],
        :item::bytea[]) WITH ORDINALITY AS given (made, place, id, whole_id, call, item, number)
),
saved AS (
    INSERT INTO toolwire.holders AS h
        (id, owner, kind, created, size, status, previous, conversation, continuation, fields, body, written_by)
    SELECT :id, :owner, 'response', :created, :size::bigint {journal_size},
        :status, :previous, :conversation, :continuation, :fields, :body, :token FROM guard
    ON CONFLICT (id) {known}
    RETURNING 1
),
kept AS (
    INSERT INTO toolwire.items (holder, made, place, id, whole_id, owner, call, item)
    SELECT :id, given.made, given.place, given.id, given.whole_id, :owner, given.call, given.item FROM given, saved
    ON CONFLICT (holder, made, place) DO UPDATE
        SET id = excluded.id, whole_id = excluded.whole_id, call = excluded.call, item = excluded.item
)
{more}
SELECT {result}

-- name: counted_runs
runs AS MATERIALIZED (SELECT in_all, owned FROM toolwire.count_runs(:owner)),

-- name: has_room
-- Part of the guard's condition, so that its row is locked after the runs are counted.
AND (SELECT in_all < :most_in_all AND owned < :most_owned FROM runs)

-- name: update_response
DO UPDATE SET used = now(), status = excluded.status, body = excluded.body, written_by = excluded.written_by,
    size = h.size + excluded.size - length(h.fields) - length(h.body)
WHERE h.owner = excluded.owner AND h.kind = 'response' AND h.status = ANY (:unfinished::text[])
    AND h.written_by <> excluded.written_by

-- name: is_unfenced
-- A response with a run is written only with its fence.
AND NOT EXISTS (SELECT 1 FROM toolwire.runs r WHERE r.id = h.id)

-- name: size_of_events
+ (SELECT coalesce(sum(length(frames)), 0)::bigint FROM toolwire.journal WHERE response = :id)

-- name: put_last_events
journaled AS (
    INSERT INTO toolwire.journal (response, first, count, epoch, frames)
    SELECT :id, :first, :count, :epoch, :frames FROM guard, saved ON CONFLICT DO NOTHING
)

-- name: put_run
queued AS (
    INSERT INTO toolwire.runs (id, owner, member, epoch, plan) SELECT :id, :owner, :runner, 1, :plan FROM saved
)

-- name: extend_conversation
conversation AS (
    UPDATE toolwire.holders c SET used = now(), places = c.places + :places, size = c.size + (
        SELECT coalesce(sum(length(item)), 0) FROM given)
    FROM saved WHERE c.id = :into AND c.owner = :owner AND c.kind = 'conversation'
    RETURNING c.places - :places AS first
),
added AS (
    INSERT INTO toolwire.items (holder, made, place, id, whole_id, owner, item)
    SELECT :into, 0, first + number - 1, id, whole_id, :owner, item FROM given, conversation
)

-- name: put_links
callers AS (
    SELECT :link AS id, :link_to AS continuation FROM saved WHERE :link <> ''
    UNION ALL
    SELECT DISTINCT i.holder, :id FROM saved, toolwire.items i JOIN toolwire.holders h ON h.id = i.holder
    WHERE i.owner = :owner AND i.call = ANY (:answered::text[]) AND i.made = 1
        AND h.owner = :owner AND h.conversation = :into AND h.id <> :id
),
linked AS (
    UPDATE toolwire.holders h SET continuation = c.continuation
    FROM (SELECT id, max(continuation) AS continuation FROM callers GROUP BY id ORDER BY id) c
    WHERE h.id = c.id AND h.owner = :owner
)

-- name: state
SELECT h.owner = :owner AND h.status = ANY (:unfinished::text[]),
    (SELECT r.epoch FROM toolwire.runs r WHERE r.id = h.id)
FROM toolwire.holders h WHERE h.id = :id

-- name: append
-- A run's row stays locked until its events are committed; a process that takes over the run waits for that.
-- A repeated append finds its own chunk and does not change it. A run that is lost is not in `mine`.
WITH given AS (
    SELECT * FROM unnest(:ids::text[], :owners::text[], :epochs::bigint[], :firsts::bigint[], :counts::bigint[],
        :frames::bytea[]) AS given (id, owner, epoch, first, count, frames)
),
mine AS (
    SELECT r.id, r.epoch, r.is_cancelled FROM toolwire.runs r
    WHERE (r.id, r.owner, r.epoch) IN (SELECT id, owner, epoch FROM given) AND NOT r.is_over
    ORDER BY r.id FOR SHARE OF r
),
added AS (
    INSERT INTO toolwire.journal (response, first, count, epoch, frames)
    SELECT given.id, given.first, given.count, given.epoch, given.frames FROM given JOIN mine USING (id, epoch)
    ON CONFLICT DO NOTHING
)
SELECT id, epoch, is_cancelled FROM mine

-- name: follow
WITH wanted AS (
    SELECT * FROM unnest(:ids::text[], :owners::text[], :nexts::bigint[])
        WITH ORDINALITY AS wanted (id, owner, next, number)
),
runs AS (
    SELECT w.number, w.id, w.next, h.id IS NOT NULL AS is_there, r.id IS NULL AS is_over
    FROM wanted w
    LEFT JOIN toolwire.holders h ON h.id = w.id AND h.owner = w.owner
    LEFT JOIN toolwire.runs r ON r.id = h.id AND NOT r.is_over
),
found AS (
    SELECT runs.number, c.first, c.count, c.frames,
        row_number() OVER (PARTITION BY runs.number ORDER BY c.first) AS place,
        sum(length(c.frames)) OVER (ORDER BY runs.number, c.first) AS total
    FROM runs CROSS JOIN LATERAL (
        SELECT j.first, j.count, j.frames FROM toolwire.journal j
        WHERE j.response = runs.id AND runs.is_there AND j.first + j.count > runs.next AND j.first >= coalesce(
            (SELECT max(b.first) FROM toolwire.journal b WHERE b.response = runs.id AND b.first <= runs.next), 0)
        ORDER BY j.first LIMIT :chunks
    ) c
),
ends AS (
    SELECT number, is_over AND NOT EXISTS (
        SELECT 1 FROM toolwire.journal j WHERE j.response = runs.id AND runs.is_there AND j.first >= greatest(
            runs.next, (SELECT max(f.first + f.count) FROM found f WHERE f.number = runs.number
                AND (f.place = 1 OR f.total <= :most)))
    ) AS is_over FROM runs
)
SELECT e.number, e.is_over, f.first, f.count, f.frames FROM ends e
LEFT JOIN found f ON f.number = e.number AND (f.place = 1 OR f.total <= :most)
WHERE f.number IS NOT NULL OR e.is_over ORDER BY e.number, f.first

-- name: get_values
WITH found AS (
    SELECT given.number, k.value, coalesce(sum(length(k.value)) OVER (
        ORDER BY given.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM unnest(:kinds::text[], :digests::bytea[]) WITH ORDINALITY AS given (kind, digest, number)
    JOIN toolwire.kept k ON k.owner = :owner AND k.kind = given.kind AND k.digest = given.digest
        AND k.used >= now() - :max_age * interval '1 second'
)
SELECT number, value FROM found WHERE before < :most

-- name: clear_dropped
-- Deletes the rest of responses that processes of an earlier version deleted: they delete in two steps.
WITH gone AS (
    SELECT holder FROM toolwire.dropped d WHERE NOT EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = d.holder)
    ORDER BY holder LIMIT 64 FOR UPDATE SKIP LOCKED
),
items AS (DELETE FROM toolwire.items WHERE holder IN (SELECT holder FROM gone)),
journal AS (DELETE FROM toolwire.journal WHERE response IN (SELECT holder FROM gone)),
done AS (DELETE FROM toolwire.dropped WHERE holder IN (SELECT holder FROM gone) RETURNING 1)
SELECT count(*) FROM done

-- name: mark
-- Marks a transaction with its token, if there is anything to commit.
INSERT INTO toolwire.commits (token) SELECT :token WHERE txid_current_if_assigned() IS NOT NULL RETURNING 1

-- name: mark_again
-- No row if the transaction was committed before. Waits while the server still has it in progress.
INSERT INTO toolwire.commits (token) VALUES (:token) ON CONFLICT DO NOTHING RETURNING 1

-- name: forget_commits
-- A transaction is retried for a few seconds.
DELETE FROM toolwire.commits WHERE at < now() - interval '1 hour'

-- name: probe
WITH gone AS (DELETE FROM toolwire.probes) INSERT INTO toolwire.probes (id, data) VALUES (:id, :data)

-- name: end_probe
DELETE FROM toolwire.probes WHERE id = :id

-- name: read_some
SELECT version FROM toolwire.schema_version
