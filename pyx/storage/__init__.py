"""The bytes of logged, archived and forwarded messages, packed and unpacked."""
