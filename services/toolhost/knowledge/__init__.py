"""Knowledge: documents in an index of words and an index of vectors, and one ranking of what both find.

Reading order: chunks, terms and fusion (pure), ports (what an index and an embedding model are), search (a question),
documents, indexing and ledger (an index run), standing (how it all stands), backends (which ones the settings name). Each
vendor has one owner: tantivy, vectors (SQLite, numpy), meilisearch, qdrant, endpoint (HTTP), onnx.
"""
