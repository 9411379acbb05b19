# cython: language_level=3
"""Topic Aliases that we set at one client (MQTT 5, 3.3.2.3.4): which topics, and when.

An alias costs 3 bytes in every packet and spares the topic. A client allows only so many, and they are worth most for
the topics that it is sent most. So a topic gets an alias

    at once                         while aliases are free
    when it comes again             within the last few that had none, if the alias that the hand points at is cold;
                                    a warm one cools by one, the hand goes on, and the topic is sent as it is

Each use warms an alias, up to HEAT_MAX. So the topics that are sent most keep theirs, whatever passes by once, and one
that is no longer sent loses its own after a while. All of it takes a bounded number of steps per message.

An alias means what the last PUBLISH that carried topic and alias says: the caller puts that packet into the outbox, or
does not ask. Aliases end with the connection, and so does the table; it exists from the first message on that could
have had one.
"""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t


cdef enum:
    ALIAS_TOPIC_BYTES_MIN = 5       # shorter topics are sent as they are: an alias would spare one byte at most
    ALIAS_BYTES = 3                 # of the property


cdef struct Aliases

# 0: send the topic alone. n > 0: alias n stands for it already, send no topic. n < 0: send the topic with alias -n,
# which stands for it from then on. `most`: how many aliases there may be, the same in every call
cdef int32_t alias_for(
    Aliases** table, uint32_t most, const uint8_t* topic, uint16_t length, uint32_t hash_
) noexcept nogil
cdef void aliases_free(Aliases* table) noexcept nogil
