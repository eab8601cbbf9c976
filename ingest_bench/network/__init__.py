"""Link between load generator and server: plan (pure), act (apply), measure (verify)."""
