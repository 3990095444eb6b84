//! Real programs over virtual addresses between two sites behind NATs: packages as their users get them from Debian and
//! PyPI, started as their users start them. `cargo xtask test apps` runs the tests, which fetch what is missing; each
//! says in one line what it measured.

mod fetch;
pub mod packages;
pub mod program;
pub mod sites;

use std::io::Write as _;

/// One line about what a program did. Past the capture of the test harness, which shows what a test says only when it
/// fails.
pub fn report(program: &str, measured: &str) {
    // A closed output must not fail a test.
    drop(writeln!(std::io::stdout(), "\n   {program}: {measured}"));
}
