CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE author (
	namespace VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	PRIMARY KEY (namespace, name)
);
CREATE TABLE chunk (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	namespace VARCHAR NOT NULL, 
	passage_id INTEGER, 
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	embedding BLOB, 
	generation INTEGER NOT NULL, 
	attempts INTEGER NOT NULL, 
	deleted BOOLEAN NOT NULL
, model INTEGER NOT NULL DEFAULT 1, retry_at VARCHAR);
CREATE TABLE episode (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	namespace VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	recorded_at VARCHAR NOT NULL, 
	agent VARCHAR NOT NULL, 
	thread VARCHAR, 
	role VARCHAR, 
	name VARCHAR, 
	content TEXT, 
	subject VARCHAR
);
CREATE INDEX episode_by_namespace ON episode (namespace, seq);
CREATE INDEX episode_by_thread ON episode (namespace, thread, seq);
CREATE TABLE file (
	namespace VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	bytes INTEGER NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	mtime_us INTEGER NOT NULL, 
	modified VARCHAR NOT NULL, 
	PRIMARY KEY (namespace, path)
);
CREATE TABLE idempotency (
	namespace VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	tool VARCHAR NOT NULL, 
	request VARCHAR NOT NULL, 
	receipt TEXT NOT NULL, 
	at VARCHAR NOT NULL, 
	PRIMARY KEY (namespace, "key")
);
CREATE TABLE passage (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	namespace VARCHAR NOT NULL, 
	type VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	at VARCHAR NOT NULL, 
	thread VARCHAR, 
	author VARCHAR, 
	"key" VARCHAR, 
	kind VARCHAR, 
	words INTEGER NOT NULL, 
	hidden BOOLEAN NOT NULL, 
	superseded_at VARCHAR, 
	expires_at VARCHAR, 
	version INTEGER, 
	first_line INTEGER, 
	last_line INTEGER, 
	text TEXT
, place VARCHAR);
CREATE INDEX passage_by_subject ON passage (namespace, type, subject);
CREATE INDEX passage_by_thread ON passage (namespace, thread, seq);
CREATE INDEX passage_in_reach ON passage (namespace, hidden, type, superseded_at, expires_at, at);
CREATE TABLE file_version (
	namespace VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	bytes INTEGER NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, pruned_at VARCHAR, 
	PRIMARY KEY (namespace, path, version), 
	FOREIGN KEY(seq) REFERENCES episode (seq)
);
CREATE TABLE memory (
	id VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	content TEXT NOT NULL, 
	fingerprint VARCHAR NOT NULL, 
	"key" VARCHAR, 
	kind VARCHAR NOT NULL, 
	tags TEXT NOT NULL, 
	metadata TEXT NOT NULL, 
	thread VARCHAR, 
	source VARCHAR NOT NULL, 
	agent VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	recorded_at VARCHAR NOT NULL, 
	expires_at VARCHAR, 
	superseded_by VARCHAR, 
	superseded_at VARCHAR, 
	forgotten_at VARCHAR, 
	seen INTEGER NOT NULL, archived_at VARCHAR, 
	PRIMARY KEY (id), 
	FOREIGN KEY(seq) REFERENCES episode (seq)
);
CREATE INDEX memory_by_fingerprint ON memory (namespace, fingerprint);
CREATE INDEX memory_by_key ON memory (namespace, "key");
CREATE TABLE memory_tag (
	namespace VARCHAR NOT NULL, 
	tag VARCHAR NOT NULL, 
	memory_id VARCHAR NOT NULL, 
	PRIMARY KEY (namespace, tag, memory_id), 
	FOREIGN KEY(memory_id) REFERENCES memory (id)
);
CREATE INDEX passage_expiring ON passage (namespace, expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE in_reach (
	namespace VARCHAR NOT NULL, 
	type VARCHAR NOT NULL, 
	passages INTEGER NOT NULL, 
	PRIMARY KEY (namespace, type)
);
CREATE TRIGGER passage_added AFTER INSERT ON passage
    WHEN new.hidden = 0 AND new.superseded_at IS NULL BEGIN
        INSERT INTO in_reach (namespace, type, passages) VALUES (new.namespace, new.type, 1)
        ON CONFLICT (namespace, type) DO UPDATE SET passages = passages + 1;
    END;
CREATE TRIGGER passage_removed AFTER DELETE ON passage
    WHEN old.hidden = 0 AND old.superseded_at IS NULL BEGIN
        UPDATE in_reach SET passages = passages - 1 WHERE namespace = old.namespace AND type = old.type;
    END;
CREATE TRIGGER passage_changed AFTER UPDATE OF hidden, superseded_at ON passage BEGIN
        UPDATE in_reach
        SET passages = passages + (new.hidden = 0 AND new.superseded_at IS NULL)
                                - (old.hidden = 0 AND old.superseded_at IS NULL)
        WHERE namespace = new.namespace AND type = new.type;
    END;
CREATE VIRTUAL TABLE "passage_fts" USING fts5(
    body, context, namespace, tokenize="porter unicode61 remove_diacritics 2 categories 'L* N* Co M*'"
);
CREATE VIRTUAL TABLE passage_vocab USING fts5vocab(passage_fts, row);
CREATE TABLE model (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR, 
	dimensions INTEGER, 
	settings TEXT, 
	generation INTEGER NOT NULL, 
	token VARCHAR NOT NULL, 
	enlisted BOOLEAN NOT NULL, 
	retired_at VARCHAR
, backend VARCHAR, next_backend VARCHAR, next_token VARCHAR, next_generation INTEGER DEFAULT '0' NOT NULL);
CREATE TABLE index_state (
	id INTEGER NOT NULL, 
	model INTEGER NOT NULL, 
	next_model INTEGER, 
	PRIMARY KEY (id), 
	FOREIGN KEY(model) REFERENCES model (id), 
	FOREIGN KEY(next_model) REFERENCES model (id)
);
CREATE INDEX chunk_by_passage ON chunk (passage_id, model);
CREATE INDEX chunk_by_generation ON chunk (model, namespace, generation);
CREATE INDEX chunk_pending ON chunk (model, attempts, id) WHERE embedding IS NULL AND deleted = 0;
CREATE INDEX chunk_tombstone ON chunk (model, id) WHERE deleted = 1;
CREATE TABLE state (
	namespace VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	value TEXT, 
	at VARCHAR NOT NULL, 
	replaced_at VARCHAR, 
	seq INTEGER NOT NULL, 
	PRIMARY KEY (namespace, "key", version), 
	FOREIGN KEY(seq) REFERENCES episode (seq)
);
CREATE INDEX state_by_episode ON state (seq);
CREATE TABLE summary (
	seq INTEGER NOT NULL, 
	namespace VARCHAR NOT NULL, 
	thread VARCHAR NOT NULL, 
	first_seq INTEGER NOT NULL, 
	last_seq INTEGER NOT NULL, 
	turns INTEGER NOT NULL, 
	content TEXT NOT NULL, 
	writer VARCHAR NOT NULL, 
	trust VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	replaced_at VARCHAR, 
	PRIMARY KEY (seq), 
	FOREIGN KEY(seq) REFERENCES episode (seq)
);
CREATE INDEX summary_by_thread ON summary (namespace, thread, seq);
CREATE TABLE reading (
	namespace VARCHAR NOT NULL, 
	file VARCHAR NOT NULL, 
	reading TEXT NOT NULL, 
	at VARCHAR NOT NULL, 
	PRIMARY KEY (namespace, file)
);
CREATE INDEX file_version_by_content ON file_version (namespace, sha256, pruned_at, bytes);
CREATE TABLE unsearched (
	namespace VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	bytes INTEGER NOT NULL, 
	mtime_us INTEGER NOT NULL, 
	why VARCHAR NOT NULL, 
	PRIMARY KEY (namespace, path)
);
CREATE TABLE token (
	id VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	agent VARCHAR NOT NULL, 
	scopes TEXT NOT NULL, 
	created_at VARCHAR NOT NULL, 
	expires_at VARCHAR, 
	revoked_at VARCHAR, 
	used_at VARCHAR, 
	rotated_to VARCHAR, 
	PRIMARY KEY (id)
);
CREATE UNIQUE INDEX token_by_digest ON token (digest);
CREATE TABLE audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	agent VARCHAR NOT NULL, 
	token VARCHAR, 
	tool VARCHAR NOT NULL, 
	target TEXT, 
	salt VARCHAR, 
	target_sha256 VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	seq INTEGER, 
	previous VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL
);
CREATE INDEX audit_by_namespace ON audit (namespace, id);
CREATE TABLE left_index (
	token VARCHAR NOT NULL, 
	model INTEGER NOT NULL, 
	backend VARCHAR NOT NULL, 
	at VARCHAR NOT NULL, 
	PRIMARY KEY (token)
);
CREATE TABLE spending (
	day VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	tokens INTEGER NOT NULL, 
	PRIMARY KEY (day, namespace)
);
