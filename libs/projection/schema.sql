-- The embedded read model: rebuilt from the log whenever user_version differs, so there are no migrations.
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    task_id TEXT NOT NULL,
    parent_run_id TEXT,
    title TEXT NOT NULL,
    searched TEXT NOT NULL,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL,
    started_at TEXT,
    finished_at TEXT,
    last_sequence INTEGER NOT NULL,
    last_event_at TEXT NOT NULL,
    workspace TEXT NOT NULL,
    priority TEXT NOT NULL,
    metadata TEXT NOT NULL,
    project_id TEXT,
    answer TEXT,
    verdict TEXT,
    error_code TEXT,
    error_message TEXT,
    requests INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    cost_usd REAL DEFAULT 0.0
) WITHOUT ROWID;
CREATE INDEX runs_newest ON runs (tenant, created_at, run_id);
CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id);
CREATE INDEX runs_by_task ON runs (task_id);

CREATE INDEX runs_by_project ON runs (project_id, created_at, run_id) WHERE project_id IS NOT NULL;

CREATE TABLE projects (
    project_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    phase TEXT NOT NULL,
    created_at TEXT NOT NULL,
    finished_at TEXT,
    last_sequence INTEGER NOT NULL,
    last_event_at TEXT NOT NULL,
    committed INTEGER NOT NULL DEFAULT 0,
    features_total INTEGER NOT NULL DEFAULT 0,
    sessions INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX projects_newest ON projects (tenant, created_at, project_id);

CREATE TABLE schedules (
    schedule_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    overlap TEXT NOT NULL,
    enabled INTEGER NOT NULL,
    status TEXT NOT NULL,
    created_at TEXT NOT NULL,
    next_at TEXT,
    last_run_id TEXT,
    last_due_at TEXT,
    fires INTEGER NOT NULL DEFAULT 0,
    missed INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    last_sequence INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX schedules_newest ON schedules (tenant, created_at, schedule_id);

CREATE TABLE questions (
    run_id TEXT NOT NULL,
    question_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    question TEXT NOT NULL,
    asked_at TEXT NOT NULL,
    answer TEXT,
    answered_at TEXT,
    PRIMARY KEY (run_id, question_id)
) WITHOUT ROWID;
CREATE INDEX questions_open ON questions (run_id) WHERE answered_at IS NULL;

-- How far each shard is folded, and the record that proves that it is still the same log.
CREATE TABLE positions (
    shard INTEGER PRIMARY KEY,
    stream_sequence INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    log_id TEXT NOT NULL,
    message_id TEXT NOT NULL
);
