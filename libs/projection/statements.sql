-- Every statement that writes, and those that both stores read alike, by name. Each is idempotent: a record applied twice
-- changes nothing.

-- name: create_run
INSERT INTO runs (run_id, tenant, task_id, parent_run_id, title, searched, status, created_at, last_sequence,
                  last_event_at, workspace, priority, metadata, project_id)
VALUES (:run_id, :tenant, :task_id, :parent_run_id, :title, :searched, :status, :created_at, :last_sequence,
        :last_event_at, :workspace, :priority, :metadata, :project_id)
ON CONFLICT (run_id) DO NOTHING;

-- name: move_run
UPDATE runs
SET status = :status,
    last_sequence = :last_sequence,
    last_event_at = :last_event_at,
    attempt = coalesce(:attempt, attempt),
    started_at = coalesce(started_at, :started_at),
    finished_at = coalesce(:finished_at, finished_at),
    answer = coalesce(:answer, answer),
    verdict = coalesce(:verdict, verdict),
    error_code = coalesce(:error_code, error_code),
    error_message = coalesce(:error_message, error_message)
WHERE run_id = :run_id AND last_sequence < :last_sequence;

-- name: count_usage
UPDATE runs
SET requests = :requests,
    input_tokens = :input_tokens,
    cached_tokens = :cached_tokens,
    cache_write_tokens = :cache_write_tokens,
    output_tokens = :output_tokens,
    reasoning_tokens = :reasoning_tokens,
    cost_usd = :cost_usd
WHERE run_id = :run_id;

-- name: remove_run
DELETE FROM runs WHERE run_id = :run_id;

-- name: remove_questions
DELETE FROM questions WHERE run_id = :run_id;

-- name: ask
INSERT INTO questions (run_id, question_id, kind, question, asked_at)
VALUES (:run_id, :question_id, :kind, :question, :asked_at)
ON CONFLICT (run_id, question_id) DO NOTHING;

-- name: answer
UPDATE questions
SET answer = :answer, answered_at = :answered_at
WHERE run_id = :run_id AND question_id = :question_id AND answered_at IS NULL;

-- name: move_position
INSERT INTO positions (shard, stream_sequence, tenant, log_id, message_id)
VALUES (:shard, :stream_sequence, :tenant, :log_id, :message_id)
ON CONFLICT (shard) DO UPDATE
SET stream_sequence = excluded.stream_sequence,
    tenant = excluded.tenant,
    log_id = excluded.log_id,
    message_id = excluded.message_id
WHERE excluded.stream_sequence > positions.stream_sequence;

-- name: positions
SELECT shard, stream_sequence, tenant, log_id, message_id FROM positions ORDER BY shard;

-- name: create_project
INSERT INTO projects (project_id, tenant, name, status, phase, created_at, last_sequence, last_event_at,
                      features_total)
VALUES (:project_id, :tenant, :name, :status, :phase, :created_at, :last_sequence, :last_event_at, :features_total)
ON CONFLICT (project_id) DO NOTHING;

-- name: move_project
UPDATE projects
SET status = :status,
    phase = coalesce(:phase, phase),
    finished_at = coalesce(:finished_at, finished_at),
    last_sequence = :last_sequence,
    last_event_at = :last_event_at,
    sessions = coalesce(:sessions, sessions),
    features_total = features_total + :listed,
    committed = committed + :committed
WHERE project_id = :project_id AND last_sequence < :last_sequence;

-- name: create_schedule
INSERT INTO schedules (schedule_id, tenant, name, cron, timezone, overlap, enabled, status, created_at, next_at,
                       last_sequence)
VALUES (:schedule_id, :tenant, :name, :cron, :timezone, :overlap, :enabled, :status, :created_at, :next_at,
        :last_sequence)
ON CONFLICT (schedule_id) DO NOTHING;

-- name: move_schedule
UPDATE schedules
SET status = :status,
    name = coalesce(:name, name),
    cron = coalesce(:cron, cron),
    timezone = coalesce(:timezone, timezone),
    overlap = coalesce(:overlap, overlap),
    enabled = coalesce(:enabled, enabled),
    next_at = :next_at,
    last_run_id = coalesce(:run_id, last_run_id),
    last_due_at = coalesce(:due_at, last_due_at),
    fires = fires + :fired,
    missed = missed + :missed,
    skipped = skipped + :skipped,
    last_sequence = :last_sequence
WHERE schedule_id = :schedule_id AND last_sequence < :last_sequence;

-- name: remove_schedule
DELETE FROM schedules WHERE schedule_id = :schedule_id;

