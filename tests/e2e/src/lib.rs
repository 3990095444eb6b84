//! test-e2e
