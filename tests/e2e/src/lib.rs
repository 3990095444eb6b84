//! End-to-end tests: see `tests/`. They run the built programs, so `cargo xtask test e2e` builds those first.
