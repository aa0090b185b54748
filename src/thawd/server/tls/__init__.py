"""TLS on thawd's port: `certificates` loads and replaces the certificate, `listening` accepts the connections."""
