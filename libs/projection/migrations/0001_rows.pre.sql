-- The rows, as in schema.sql. Ids and times are compared by their bytes, in every locale.
CREATE TABLE runs (
    run_id text COLLATE "C" PRIMARY KEY,
    tenant text NOT NULL,
    task_id text NOT NULL,
    parent_run_id text COLLATE "C",
    title text NOT NULL,
    searched text NOT NULL,
    status text NOT NULL,
    attempt bigint NOT NULL DEFAULT 0,
    created_at text COLLATE "C" NOT NULL,
    started_at text,
    finished_at text,
    last_sequence bigint NOT NULL,
    last_event_at text NOT NULL,
    workspace text NOT NULL,
    priority text NOT NULL,
    metadata text NOT NULL,
    project_id text COLLATE "C",
    answer text,
    verdict text,
    error_code text,
    error_message text,
    requests bigint NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    cached_tokens bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    reasoning_tokens bigint NOT NULL DEFAULT 0,
    cost_usd double precision DEFAULT 0.0
);

CREATE TABLE projects (
    project_id text COLLATE "C" PRIMARY KEY,
    tenant text NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    phase text NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    finished_at text,
    last_sequence bigint NOT NULL,
    last_event_at text NOT NULL,
    committed bigint NOT NULL DEFAULT 0,
    features_total bigint NOT NULL DEFAULT 0,
    sessions bigint NOT NULL DEFAULT 0
);

CREATE TABLE schedules (
    schedule_id text COLLATE "C" PRIMARY KEY,
    tenant text NOT NULL,
    name text NOT NULL,
    cron text NOT NULL,
    timezone text NOT NULL,
    overlap text NOT NULL,
    enabled bigint NOT NULL,
    status text NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    next_at text,
    last_run_id text,
    last_due_at text,
    fires bigint NOT NULL DEFAULT 0,
    missed bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    last_sequence bigint NOT NULL
);

CREATE TABLE questions (
    run_id text COLLATE "C" NOT NULL,
    question_id text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    question text NOT NULL,
    asked_at text COLLATE "C" NOT NULL,
    answer text,
    answered_at text,
    PRIMARY KEY (run_id, question_id)
);

CREATE TABLE positions (
    shard integer PRIMARY KEY,
    stream_sequence bigint NOT NULL,
    tenant text NOT NULL,
    log_id text NOT NULL,
    message_id text NOT NULL
);

-- Which version of the fold the rows are of: a later one makes them anew, an earlier one leaves them alone.
CREATE TABLE written_by (version integer NOT NULL);
INSERT INTO written_by (version) VALUES (0);
