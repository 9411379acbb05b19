# cython: language_level=3
"""Topic Aliases that the broker sets for one client (MQTT 5, 3.3.2.3.4): the choice of topics, and when.

An alias costs 3 bytes in every packet and saves the topic. A client allows only a number of them, which are best used
for the topics that it is sent most. So a topic gets an alias

    at once                         while aliases are free
    when it occurs again            within the last few topics without one, if the alias at the clock hand is cold;
                                    a warm one cools by one, the hand advances, and the topic is sent as it is

Each use warms an alias, up to HEAT_MAX. So the topics that are sent most keep theirs, whatever occurs once, and a topic
that is no longer sent loses its alias after a while. All of it takes a bounded number of steps per message.

The meaning of an alias is defined by the last PUBLISH with topic and alias: the caller must put that packet into the
outbox once it has asked. Aliases end with the connection, and so does the table; it is created with the first message
that could have an alias.
"""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t


cdef enum:
    ALIAS_TOPIC_BYTES_MIN = 5       # shorter topics are sent as they are: an alias would save one byte at most
    ALIAS_BYTES = 3                 # size of the property


cdef struct Aliases

# 0: send the topic alone. n > 0: alias n is already set for it, send no topic. n < 0: send the topic with alias -n,
# which is set for it from then on. `most`: the number of aliases allowed, the same in every call
cdef int32_t alias_for(
    Aliases** table, uint32_t most, const uint8_t* topic, uint16_t length, uint32_t hash_
) noexcept nogil
cdef void aliases_free(Aliases* table) noexcept nogil
