"""Names and words that must not occur: paths of one machine, junk drawers, unfinished work."""

import re

import sources

TEXT = (".h", ".cc", ".cu", ".py", ".cmake", ".txt", ".md", ".capnp", ".json", ".in", ".yaml", "")
# Written with [x] so that this file does not match itself.
WORDS = {
    r"/(w[o]rk|home|Users)/\w|(?<!\$)/ro[o]t/": "a path of one machine",
    r"\.\./sh[a]red\b": "a path outside the repository",
    r"\b(p[y]pi\.org|p[y]thonhosted\.org|download\.p[y]torch|deb\.d[e]bian)": "a package host",
    r"\b(T[O]DO|FIX[M]E|X[X]X)\b": "unfinished work",
}
JUNK_DRAWERS = re.compile(r"(^|_)(utils?|commons?|helpers?|misc)(_|$)")
CODE_NAME = re.compile(r"^[a-z0-9_]+(\.capnp)?\.(h|cc|cu|py|capnp)$")


def check(root):
    complaints = []
    for path in sources.tracked(root, TEXT):
        for number, line in enumerate(sources.read(root, path).splitlines(), 1):
            for word, reason in WORDS.items():
                if re.search(word, line):
                    complaints.append(f"{path}:{number}: {reason}: {line.strip()}")
        if any(JUNK_DRAWERS.search(part.split(".")[0].lower()) for part in path.parts):
            complaints.append(f"{path}: name it after its subject, this name fits anything")
        if path.suffix in (".h", ".cc", ".cu", ".capnp") and not CODE_NAME.match(path.name):
            complaints.append(f"{path}: file names are snake_case")
    return complaints


GOOD = {
    "rpc/send.cc": "// sends to the peer's root; see rref/README.md\n",
    "rref/README.md": "Read `../rpc/README.md`.\n",
    "rpc/wire/frame.h": "// common to all kinds\n",
}
BAD = {
    "rpc/send.cc": "// as in /wo" + "rk/x/send.cc\n",
    "rref/README.md": "Read `../sha" + "red/DESIGN.md`.\n",
    "tests/README.md": "Fetched from https://py" + "pi.org/simple\n",
    "c10d/base/error.h": "// TO" + "DO: say more\n",
    "rpc/agent/send_utils.cc": "\n",
    "c10d/common/error.h": "\n",
    "rpc/agent/Send.cc": "\n",
}

if __name__ == "__main__":
    sources.main(check, GOOD, BAD)
