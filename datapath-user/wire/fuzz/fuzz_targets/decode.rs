//! Any bytes in any split: no panic, and the same frames however they are split.
#![no_main]

use datapath_wire::{Decoder, Frame, Hello, frame::VERSION};
use libfuzzer_sys::fuzz_target;

fn greeted() -> Decoder {
    let mut d = Decoder::new();
    let hello = Hello { version: VERSION, features: 0, epoch: 1, node: "a/b".to_owned() };
    let ok = d.feed(&Frame::Hello(hello).to_bytes(), |_| {});
    assert!(ok.is_ok());
    d
}

fuzz_target!(|data: &[u8]| {
    let Some((&step, data)) = data.split_first() else { return };
    let (mut whole, mut pieces) = (Vec::new(), Vec::new());
    let one = greeted().feed(data, |f| whole.push(format!("{f:?}")));
    let mut d = greeted();
    let mut many = Ok(());
    for part in data.chunks(usize::from(step).max(1)) {
        many = d.feed(part, |f| pieces.push(format!("{f:?}")));
        if many.is_err() {
            break;
        }
    }
    assert_eq!(whole, pieces);
    assert_eq!(one, many);
});
