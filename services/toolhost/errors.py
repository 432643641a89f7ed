"""What a tool call can fail with, below the one tree of `libs/contracts/errors.py`.

Invariant: a `ToolFailure` is the tool's answer to the model and never the end of a run; `code` is permanent, and
the message says what to do next.

    ToolFailure                 TOOL_FAILURE
    ├── PathRefused             PATH_REFUSED: the path leaves the workspace, or passes over a link
    ├── FileMissing             FILE_NOT_FOUND
    ├── WrongKind               WRONG_FILE_KIND: a directory, a pipe, a socket, a device
    ├── FileTooLarge            FILE_TOO_LARGE
    ├── FileChanged             FILE_CHANGED: somebody else wrote between plan and effect
    ├── BinaryFile              BINARY_FILE
    ├── BeyondEnd               OFFSET_BEYOND_END
    ├── WorkspaceFault          WORKSPACE_IO: the disk is full, permission is missing, and the like
    ├── InvalidArguments        INVALID_ARGUMENTS
    ├── InvalidPattern          INVALID_PATTERN
    ├── SearchTooCostly         SEARCH_TOO_COSTLY
    ├── EditEmpty               EDIT_EMPTY
    ├── EditIdentical           EDIT_IDENTICAL
    ├── EditNoMatch             EDIT_NO_MATCH
    ├── RedactedText            REDACTED_TEXT: the mark of a secret was taken for text of the file
    ├── EditAmbiguous           EDIT_AMBIGUOUS
    ├── PatchInvalid            PATCH_INVALID: the text is no patch, or may be cut off
    ├── PatchNoMatch            PATCH_NO_MATCH: a hunk does not fit its file
    ├── PatchAmbiguous          PATCH_AMBIGUOUS
    ├── PatchConflict           PATCH_CONFLICT: a file that is to be added is there already
    ├── PatchEmpty              PATCH_EMPTY: nothing would change
    ├── WorkspaceFull           WORKSPACE_FULL: the workspace's quota
    ├── RepositoryFault         WORKSPACE_REPOSITORY: git could not do it
    ├── CommandNotStarted       COMMAND_NOT_STARTED
    ├── McpUnavailable          MCP_UNAVAILABLE: an MCP server that cannot be reached; nothing was called
    ├── McpRefused              MCP_ERROR: it refused the call, in its own words
    ├── McpConnectionLost       MCP_CONNECTION_LOST: it was lost during the call; what it did is not known
    ├── McpTimeout              TIMEOUT: it did not answer in time; what it did is not known
    ├── NotConfigured           TOOL_NOT_CONFIGURED
    └── KnowledgeFault          KNOWLEDGE_UNAVAILABLE: an index, its server or the embedding model cannot be used now
        ├── KnowledgeMissing    KNOWLEDGE_NOT_INDEXED: there is no index for this tenant
        └── KnowledgeMismatch   KNOWLEDGE_MODEL_MISMATCH: the index was made with another embedding model
"""

from libs.contracts.errors import PerdureError


class ToolFailure(PerdureError):
    """Root of what a tool answers instead of a result."""

    code, status = "TOOL_FAILURE", 422


class PathRefused(ToolFailure):
    code = "PATH_REFUSED"


class FileMissing(ToolFailure):
    code = "FILE_NOT_FOUND"


class WrongKind(ToolFailure):
    code = "WRONG_FILE_KIND"


class FileTooLarge(ToolFailure):
    code = "FILE_TOO_LARGE"


class FileChanged(ToolFailure):
    code = "FILE_CHANGED"


class BinaryFile(ToolFailure):
    code = "BINARY_FILE"


class BeyondEnd(ToolFailure):
    code = "OFFSET_BEYOND_END"


class WorkspaceFault(ToolFailure):
    code = "WORKSPACE_IO"


class InvalidArguments(ToolFailure):
    code = "INVALID_ARGUMENTS"


class InvalidPattern(ToolFailure):
    code = "INVALID_PATTERN"


class SearchTooCostly(ToolFailure):
    code = "SEARCH_TOO_COSTLY"


class EditEmpty(ToolFailure):
    code = "EDIT_EMPTY"


class EditIdentical(ToolFailure):
    code = "EDIT_IDENTICAL"


class EditNoMatch(ToolFailure):
    code = "EDIT_NO_MATCH"


class RedactedText(ToolFailure):
    code = "REDACTED_TEXT"


class EditAmbiguous(ToolFailure):
    code = "EDIT_AMBIGUOUS"


class PatchInvalid(ToolFailure):
    code = "PATCH_INVALID"


class PatchNoMatch(ToolFailure):
    code = "PATCH_NO_MATCH"


class PatchAmbiguous(ToolFailure):
    code = "PATCH_AMBIGUOUS"


class PatchConflict(ToolFailure):
    code = "PATCH_CONFLICT"


class PatchEmpty(ToolFailure):
    code = "PATCH_EMPTY"


class WorkspaceFull(ToolFailure):
    code = "WORKSPACE_FULL"


class RepositoryFault(ToolFailure):
    code = "WORKSPACE_REPOSITORY"


class CommandNotStarted(ToolFailure):
    code = "COMMAND_NOT_STARTED"


class McpUnavailable(ToolFailure):
    code = "MCP_UNAVAILABLE"


class McpRefused(ToolFailure):
    code = "MCP_ERROR"


class McpConnectionLost(ToolFailure):
    code = "MCP_CONNECTION_LOST"


class McpTimeout(ToolFailure):
    code = "TIMEOUT"


class NotConfigured(ToolFailure):
    code = "TOOL_NOT_CONFIGURED"


class KnowledgeFault(ToolFailure):
    code = "KNOWLEDGE_UNAVAILABLE"


class KnowledgeMissing(KnowledgeFault):
    code = "KNOWLEDGE_NOT_INDEXED"


class KnowledgeMismatch(KnowledgeFault):
    code = "KNOWLEDGE_MODEL_MISMATCH"
