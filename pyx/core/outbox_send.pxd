# cython: language_level=3
"""One system call that sends what an outbox has."""
from libc.string cimport memset

from pyx.core.kernel cimport MSG_NOSIGNAL, msghdr, send, sendmsg
from pyx.core.outbox cimport Outbox, iovec, outbox_gather

cdef enum:
    VECTORS = 64                # per sendmsg


# returns what the kernel has returned; total: the bytes that it was given
cdef inline ssize_t outbox_send(int fd, const Outbox* o, size_t* total) noexcept:
    cdef iovec[VECTORS] v
    cdef msghdr m
    if o.shared_head == o.shared_tail:
        total[0] = o.tail - o.head
        return send(fd, o.buf + o.head, total[0], MSG_NOSIGNAL)
    memset(&m, 0, sizeof(m))
    m.msg_iov = v
    m.msg_iovlen = outbox_gather(<Outbox*>o, v, VECTORS, total)
    return sendmsg(fd, &m, MSG_NOSIGNAL)
