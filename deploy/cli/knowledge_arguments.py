"""The arguments of `perdure knowledge`.

Invariant: nothing but the standard library is imported here, so that help is instant.
"""

import argparse

from deploy.cli.run_arguments import positive

_INDEX = (
    "Brings the index in line with folders and files: texts in UTF-8, markdown by its headings, everything else by lines. What "
    "did not change is left alone, what is gone goes. Names that begin with a dot, links, binary and large files are passed "
    "over. Exits 1 if something could not be indexed."
)
_ANEW = (
    "forget the vectors first, as another HYBRID_EMBED_MODEL needs it: of all that the tenant has indexed, on a Qdrant server "
    "of all tenants; index the other folders again, too"
)


def add_actions(knowledge: argparse.ArgumentParser) -> None:
    """All that can be done with documents."""
    actions = knowledge.add_subparsers(dest="action", metavar="ACTION", required=True)
    index = actions.add_parser("index", help="index folders and files", description=_INDEX)
    index.add_argument("paths", metavar="PATH", nargs="*", help="a folder with all below it, or a file")
    name = "the beginning of the documents' paths (the folder's own name)"
    index.add_argument("--as", dest="name", metavar="NAME", help=name)
    forget = "take the documents of this name out"
    index.add_argument("--forget", metavar="NAME", action="append", default=[], help=forget)
    index.add_argument("--anew", action="store_true", help=_ANEW)
    search = actions.add_parser("search", help="ask as the model does")
    search.add_argument("query", metavar="QUERY")
    search.add_argument("--limit", type=positive, default=6, metavar="N", help="at most this many (6)")
    status = actions.add_parser("status", help="what is indexed, with which model, and what is wrong")
    whose = "whose documents (local; in secure mode PERDURE_TOKEN's)"
    data = "data folder of `perdure up` (PERDURE_DATA, .perdure)"
    for command in (index, search, status):
        command.set_defaults(module="knowledge")
        command.add_argument("--tenant", metavar="NAME", help=whose)
        command.add_argument("--data", metavar="DIR", help=data)
        command.add_argument("--json", action="store_true", help="as JSON")
