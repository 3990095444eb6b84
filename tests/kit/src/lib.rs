//! test-kit
