//! What the fuzzer reached and found (`fuzz/corpus`) as an ordinary test, without nightly.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "tests; what is printed names the file that failed"
)]

mod model;

use std::{fs, path::Path};

fn each(target: &str, run: impl Fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect::<Vec<_>>();
    assert!(files.len() > 5, "no corpus");
    for file in files {
        println!("{}", file.display());
        run(&fs::read(file).unwrap());
    }
}

#[test]
fn streams() {
    each("decode", model::stream::run);
}

#[test]
fn carriers_that_break() {
    each("breaks", |steps| drop(model::World::run(steps)));
}

#[test]
fn hostile_peers() {
    each("hostile", model::hostile::Hostile::run);
}
