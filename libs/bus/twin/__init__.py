"""The bus in memory: the same promises as the servers, under any clock, with a network that may be told to misbehave."""
