# cython: language_level=3
"""The system calls that the reactor makes. Save errno at once: any other call may change it."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.outbox cimport iovec


cdef extern from "<errno.h>" nogil:
    int errno
    enum: EAGAIN, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, ECONNABORTED, EPROTO, EPERM, ETOOMANYREFS

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int most, int timeout)
    enum: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    struct sockaddr:
        uint16_t sa_family
    struct sockaddr_storage:
        uint16_t ss_family
    struct msghdr:
        void* msg_name
        socklen_t msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    ssize_t recv(int fd, void* to, size_t n, int flags)
    ssize_t send(int fd, const void* data, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr* m, int flags)
    ssize_t recvmsg(int fd, msghdr* m, int flags)
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    cmsghdr* CMSG_FIRSTHDR(msghdr* m)
    cmsghdr* CMSG_NXTHDR(msghdr* m, cmsghdr* c)
    uint8_t* CMSG_DATA(cmsghdr* c)
    size_t CMSG_LEN(size_t n)
    size_t CMSG_SPACE(size_t n)
    int accept4(int fd, sockaddr* address, socklen_t* n, int flags)
    int shutdown(int fd, int how)
    int getpeername(int fd, sockaddr* address, socklen_t* n)
    int getsockname(int fd, sockaddr* address, socklen_t* n)
    enum: SOCK_NONBLOCK, SOCK_CLOEXEC, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_CTRUNC, MSG_CMSG_CLOEXEC
    enum: SOL_SOCKET, SCM_RIGHTS, SHUT_WR, AF_INET, AF_INET6

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    struct in6_addr:
        uint8_t s6_addr[16]
    struct sockaddr_in6:
        uint16_t sin6_port
        in6_addr sin6_addr
    uint16_t ntohs(uint16_t v)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* t)
    enum: CLOCK_MONOTONIC, CLOCK_REALTIME

cdef extern from "<malloc.h>" nogil:
    int mallopt(int parameter, int value)
    int malloc_trim(size_t pad)
    enum: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_TOP_PAD


cdef inline uint64_t monotonic_ns() noexcept nogil:     # no system call: vdso(7)
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1_000_000_000 + <uint64_t>t.tv_nsec
