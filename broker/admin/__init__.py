"""What operators and monitoring see: the control process, Prometheus metrics, $SYS."""
