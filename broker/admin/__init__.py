"""The interfaces for operators and monitoring: the control process, Prometheus metrics, $SYS."""
