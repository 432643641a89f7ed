-- The pages of lists in PostgreSQL; lists_sqlite.sql says the same to SQLite.

-- name: list_runs
SELECT runs.run_id, tenant, task_id, parent_run_id, title, status, attempt, created_at, started_at, finished_at,
       last_sequence, last_event_at, workspace, priority, metadata, runs.answer, verdict, error_code, error_message,
       requests, input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost_usd,
       (SELECT question FROM questions
        WHERE questions.run_id = runs.run_id AND questions.answered_at IS NULL AND runs.status = 'WAITING_FOR_INPUT'
        ORDER BY asked_at DESC LIMIT 1) AS pending_question
FROM runs
WHERE tenant = :tenant
  AND (CAST(:statuses AS text[]) IS NULL OR status = ANY(:statuses))
  AND (CAST(:task_id AS text) IS NULL OR task_id = :task_id)
  AND (CAST(:project_id AS text) IS NULL OR project_id = :project_id)
  AND (CAST(:searched AS text) IS NULL OR strpos(searched, :searched) > 0)
  AND (CAST(:before_at AS text) IS NULL OR (created_at, runs.run_id) < (:before_at, :before_id))
ORDER BY created_at DESC, runs.run_id DESC
LIMIT :limit;

-- name: list_projects
SELECT project_id, tenant, name, status, phase, created_at, finished_at, last_sequence, last_event_at, committed,
       features_total, sessions
FROM projects
WHERE tenant = :tenant
  AND (CAST(:statuses AS text[]) IS NULL OR status = ANY(:statuses))
  AND (CAST(:before_at AS text) IS NULL OR (created_at, project_id) < (:before_at, :before_id))
ORDER BY created_at DESC, project_id DESC
LIMIT :limit;

-- name: list_schedules
SELECT schedule_id, tenant, name, cron, timezone, overlap, enabled, status, created_at, next_at, last_run_id,
       last_due_at, fires, missed, skipped, last_sequence
FROM schedules
WHERE tenant = :tenant
  AND (CAST(:statuses AS text[]) IS NULL OR status = ANY(:statuses))
  AND (CAST(:before_at AS text) IS NULL OR (created_at, schedule_id) < (:before_at, :before_id))
ORDER BY created_at DESC, schedule_id DESC
LIMIT :limit;

-- name: list_statuses
SELECT run_id, status FROM runs
WHERE tenant = :tenant AND parent_run_id IS NULL
  AND (status = ANY(CAST(:statuses AS text[])) OR run_id = ANY(CAST(:run_ids AS text[])));
