"""Counting of work, see the .pxd: the interface for Python."""
import functools

#: names of the kinds of callbacks, in order
NAMES = (
    "packets", "connect", "carried", "closed", "asked_to_close", "logged", "serve", "sweep", "deferred", "lazy",
    "commit", "forward", "acks", "drained", "send", "resume", "accept", "expire", "timer", "mesh", "stored",
    "handoff", "control", "piece", "watched", "replay", "tick", "round",
)
#: whether this is a test build
COUNTED = bool(IS_COUNTED)
BOUND = <int>BOUND_NS

STEP, SOUGHT, BLOCK_READ, INDEXED, FOUND, PACKED, HELD = \
    <int>PYTHON, <int>SEEK, <int>BLOCK, <int>INDEX, <int>FILTER, <int>RECORD, <int>OBJECT

cdef dict most = {}                     # kind -> the work that took the most

if len(NAMES) != CALLBACKS:
    raise ImportError("the kinds of callbacks and their names do not fit")


cdef int callback_ends_named(Mark* mark, int kind, object what) except -1:
    cdef uint64_t before
    if IS_COUNTED:
        before = state.own[kind]
        if callback_ends(mark, kind) > before:
            most[kind] = getattr(what, "__qualname__", None) or repr(what)
    return 0


def spend(uint64_t ns):
    """Report this much work."""
    state.spent += ns
    work(ns)


def callback(str name not None):
    """Decorator that makes the function a callback of that kind. In a release: the function itself."""
    cdef int kind = NAMES.index(name)

    def named(function):
        if not COUNTED:
            return function

        @functools.wraps(function)
        def counted(*args, **keywords):
            cdef Mark mark
            callback_begins(&mark)
            try:
                return function(*args, **keywords)
            finally:
                callback_ends_named(&mark, kind, function)

        return counted

    return named


def total():
    """Return the ns of work since the process began."""
    return state.total


def highest():
    """Return by kind of callback the most work, in ns, that one has done itself; for kinds that have done any."""
    return {name: state.own[kind] for kind, name in enumerate(NAMES) if state.own[kind]}


def whole():
    """Return the same, including the callbacks within it."""
    return {name: state.whole[kind] for kind, name in enumerate(NAMES) if state.whole[kind]}


def longest():
    """Return by kind of callback the longest time in ns, including those within it: for calibration."""
    return {name: state.longest[kind] for kind, name in enumerate(NAMES) if state.longest[kind]}


def over():
    """Return the callbacks that did more than BOUND themselves: {kind: (ns, what it was, if known)}."""
    return {name: (state.own[kind], most.get(kind)) for kind, name in enumerate(NAMES) if state.own[kind] > BOUND_NS}


def forget():
    """Reset the highest values."""
    cdef int kind
    for kind in range(<int> CALLBACKS):
        state.own[kind] = state.whole[kind] = state.longest[kind] = 0
    most.clear()
