"""Writers: one module per sink, each durable before it says so."""
