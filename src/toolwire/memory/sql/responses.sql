-- Responses, conversations and their items.
-- A read that may be too large first computes the size in the same query, and loads the items only if they fit.

-- name: record
h.id, h.created, h.status, h.fields, h.body, h.previous, h.conversation, h.continuation

-- name: load
SELECT {record} FROM toolwire.holders h
WHERE id = :id AND owner = :owner AND kind = :kind AND used >= now() - :max_age * interval '1 second'

-- name: recent_of_owner
WITH latest AS (
    SELECT * FROM toolwire.holders
    WHERE kind = 'response' AND used >= now() - :max_age * interval '1 second' AND owner = :owner
    ORDER BY used DESC, id DESC LIMIT :limit
)
{recent}

-- name: recent_of_all
WITH latest AS (
    SELECT * FROM toolwire.holders
    WHERE kind = 'response' AND used >= now() - :max_age * interval '1 second'
    ORDER BY used DESC, id DESC LIMIT :limit
)
{recent}

-- name: recent
SELECT owner, id, created, status, {no_bytes}, CASE WHEN total <= :most THEN body ELSE {no_bytes} END, previous,
    conversation, continuation
FROM (SELECT l.*, sum(length(body)) OVER (ORDER BY used DESC, id DESC) AS total FROM latest l) weighed
ORDER BY used DESC, id DESC

-- name: items
-- The input or the output of a holder.
WITH total AS MATERIALIZED (
    SELECT sum(length(item)) AS size FROM toolwire.items WHERE holder = :holder AND owner = :owner AND made = :made
)
SELECT (SELECT size FROM total), CASE WHEN (SELECT size FROM total) <= :most THEN i.item END FROM toolwire.items i
WHERE i.holder = :holder AND i.owner = :owner AND i.made = :made
    AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = :holder AND h.kind <> 'deleted')
ORDER BY i.place

-- name: links
-- A response and all that it continues.
WITH RECURSIVE chain (id, previous, conversation, used, depth) AS (
    SELECT id, previous, conversation, used, 0 FROM toolwire.holders
    WHERE id = :id AND owner = :owner AND kind = 'response'
    UNION ALL
    SELECT h.id, h.previous, h.conversation, h.used, depth + 1 FROM chain JOIN toolwire.holders h
        ON h.id = chain.previous AND h.owner = :owner AND h.kind IN ('response', 'deleted') WHERE depth < 100000
)

-- name: chain
-- First come the items that precede the oldest response in its conversation. A row has the response that the oldest
-- one continues, the size of the chain, an item, and whether to touch the chain. There are no items if the chain is
-- larger than :most, and no rows if there is no such response.
{links},
oldest AS (SELECT * FROM chain ORDER BY depth DESC LIMIT 1),
parts AS (
    SELECT depth, id AS holder, 9223372036854775807 AS ending FROM chain
    UNION ALL
    SELECT 1000000, oldest.conversation, (
        SELECT min(i.place) FROM toolwire.items own
        JOIN toolwire.items i ON i.holder = oldest.conversation AND i.id = own.id WHERE own.holder = oldest.id
    ) FROM oldest
),
total AS (
    SELECT sum(length(i.item)) AS size FROM parts p JOIN toolwire.items i ON i.holder = p.holder AND i.place < p.ending
)
SELECT oldest.previous, total.size, i.item,
    (SELECT min(used) < now() - :touch_after * interval '1 second' FROM chain)
FROM oldest CROSS JOIN total LEFT JOIN parts p ON total.size <= :most AND oldest.previous = ''
LEFT JOIN toolwire.items i ON i.holder = p.holder AND i.place < p.ending ORDER BY p.depth DESC, i.made, i.place

-- name: touch_chain
{links},
old AS (
    SELECT h.id FROM toolwire.holders h WHERE h.id IN (SELECT id FROM chain)
        AND h.used < now() - :touch_after * interval '1 second' ORDER BY h.id FOR UPDATE SKIP LOCKED
)
UPDATE toolwire.holders SET used = now() WHERE id IN (SELECT id FROM old)

-- name: missing_link
{links} SELECT previous FROM chain ORDER BY depth DESC LIMIT 1

-- name: page_up
WITH {page_start},
part AS (
    SELECT {page_columns}, i.place AS sort_key FROM toolwire.items i WHERE {on_page}
        AND (:after = '' OR i.place > (SELECT place FROM start)) ORDER BY i.place LIMIT :limit + 1
),
{page}

-- name: page_down
WITH {page_start},
part AS (
    SELECT {page_columns}, -i.place AS sort_key FROM toolwire.items i WHERE {on_page}
        AND (:after = '' OR i.place < (SELECT place FROM start)) ORDER BY i.place DESC LIMIT :limit + 1
),
{page}

-- name: page_start
start AS (
    SELECT place FROM toolwire.items
    WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :after ORDER BY place LIMIT 1
)

-- name: page_columns
i.id, {whole_id} AS whole_id, i.place, length(i.item) AS size

-- name: on_page
i.holder = :holder AND i.owner = :owner AND i.made = 0
    AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = i.holder)

-- name: page
page AS (
    SELECT part.*, row_number() OVER in_order AS number, sum(size) OVER in_order AS total
    FROM part WINDOW in_order AS (ORDER BY sort_key)
)
SELECT :after = '' OR EXISTS (SELECT 1 FROM start), p.number, p.id, p.whole_id, i.item
FROM (SELECT 1 AS one) one LEFT JOIN page p ON true
LEFT JOIN toolwire.items i ON i.holder = :holder AND i.made = 0 AND i.place = p.place
    AND p.number <= :limit AND (p.number = 1 OR p.total <= :most)
ORDER BY p.number

-- name: find_items
-- Of two items with the same id, the one whose holder was used last. In SQLite a CROSS JOIN also fixes the join order.
WITH wanted AS (SELECT id, count(*) AS times FROM {ids} GROUP BY id),
found AS (
    SELECT w.id, w.times, i.holder, i.made, i.place, length(i.item) AS size,
        row_number() OVER (PARTITION BY w.id ORDER BY h.used DESC, i.holder, i.made, i.place) AS number
    FROM wanted w CROSS JOIN toolwire.items i JOIN toolwire.holders h ON h.id = i.holder
    WHERE i.owner = :owner AND i.id = w.id AND h.kind <> 'deleted'
),
latest AS (SELECT * FROM found WHERE number = 1),
total AS (SELECT sum(size * times)::bigint AS size FROM latest)
SELECT total.size, latest.id, i.item FROM latest CROSS JOIN total LEFT JOIN toolwire.items i
    ON i.holder = latest.holder AND i.made = latest.made AND i.place = latest.place AND total.size <= :most
ORDER BY latest.id

-- name: item
SELECT item FROM toolwire.items i WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :id
    AND EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = i.holder) ORDER BY place LIMIT 1

-- name: delete_item
DELETE FROM toolwire.items WHERE holder = :holder AND owner = :owner AND made = 0 AND id = :id RETURNING length(item)

-- name: shrink_holder
UPDATE toolwire.holders SET size = size - :size::bigint WHERE id = :holder

-- name: put_conversation
INSERT INTO toolwire.holders AS h
    (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
VALUES (:id, :owner, 'conversation', :created, now(), length(:body::bytea), '', '', '', '', {no_bytes}, :body)
ON CONFLICT (id) DO UPDATE SET used = now(), body = excluded.body, size = h.size + excluded.size - length(h.body)
WHERE h.owner = excluded.owner AND h.kind = 'conversation'

-- name: next_place_in_conversation
SELECT {next_place} FROM toolwire.holders c WHERE c.id = :into AND c.owner = :owner AND c.kind = 'conversation'
FOR UPDATE

-- name: known_items
SELECT id FROM toolwire.items WHERE holder = :into AND owner = :owner AND made = 0 AND id = ANY (:ids::text[])

-- name: grow_conversation
UPDATE toolwire.holders AS c SET used = now(), size = c.size + :size::bigint{add_places} WHERE c.id = :into

-- name: put_item
INSERT INTO toolwire.items (holder, made, place, id, owner, item, {item_columns})
VALUES (:holder, :made, :place, :id, :owner, :item, {item_values})
ON CONFLICT (holder, made, place) DO UPDATE SET id = excluded.id, item = excluded.item, {item_updates}

-- name: link_callers
-- In the conversation, links the responses that made the answered calls to the response that answers them.
UPDATE toolwire.holders AS h SET continuation = :id WHERE h.owner = :owner AND h.conversation = :into AND h.id <> :id
    AND h.id IN (SELECT i.holder FROM toolwire.items i WHERE i.owner = :owner AND i.made = 1 AND {is_answered})

-- name: delete_run
DELETE FROM toolwire.runs WHERE id = :id AND owner = :owner

-- name: lock_holder
SELECT previous FROM toolwire.holders WHERE id = :id AND owner = :owner AND kind = :kind FOR UPDATE

-- name: is_continued
SELECT 1 FROM toolwire.holders WHERE previous = :id AND previous <> '' AND owner = :owner LIMIT 1

-- name: hide_response
UPDATE toolwire.holders SET kind = 'deleted', status = '', fields = {no_bytes}, body = {no_bytes},
    size = (SELECT coalesce(sum(length(item)), 0) FROM toolwire.items WHERE holder = :id) WHERE id = :id

-- name: delete_runs
DELETE FROM toolwire.runs WHERE id = ANY (:ids::text[])

-- name: delete_holders
DELETE FROM toolwire.holders WHERE id = ANY (:ids::text[])

-- name: delete_items
DELETE FROM toolwire.items WHERE holder = ANY (:ids::text[])

-- name: delete_events
DELETE FROM {journal} WHERE {response} = ANY (:ids::text[])
