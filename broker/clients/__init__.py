"""Decisions about clients: CONNECT, sessions, SUBSCRIBE, retained messages, wills, and their end."""
