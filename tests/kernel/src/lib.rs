//! test-kernel
